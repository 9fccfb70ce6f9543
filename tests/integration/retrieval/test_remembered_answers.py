"""Answers of the index that a process remembers, and what they must not be taken for."""

from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import generations
from memplane_core.storage.generations import NewGeneration
from memplane_core.storage.outbox import Revision, index_rows
from memplane_core.storage.session import Database
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

FAR = {
    "content": "alpha beside beta and gamma",
    "user_id": "u1",
    "agent_id": "a1",
    "session_id": "s1",
    "memory_type": "experience",
    "occurred_at": "2023-05-08T13:56:00Z",
}
NEAR = {
    "content": "alpha",
    "user_id": "u2",
    "agent_id": "a2",
    "session_id": "s2",
    "memory_type": "procedural",
    "occurred_at": "2024-05-08T13:56:00Z",
}


async def write(client: httpx2.AsyncClient, *memories: dict[str, Any]) -> list[UUID]:
    response = await client.post("/v1/memories/batch", json={"memories": list(memories)})
    assert response.status_code == 200, response.text
    return [UUID(item["id"]) for item in response.json()["results"]]


async def nearest(client: httpx2.AsyncClient, query: str = "alpha", *, count: int = 1, **fields: Any) -> list[str]:
    """The `count` nearest by meaning, of so many candidates; the index has to have nominated each."""
    body = {"query": query, "mode": "dense", "touch": False, "explain": True, "min_relevance": 0}
    response = await client.post("/v1/memories/search", json=body | {"top_k": count, "candidates": count} | fields)
    assert response.status_code == 200, response.text
    assert response.json()["degraded"] == []
    results = response.json()["results"]
    assert {result["explain"]["origin"] for result in results} <= {"index"}
    return [result["content"] for result in results]


async def test_the_same_question_is_answered_without_the_index(client: httpx2.AsyncClient, service: Service) -> None:
    await write(client, FAR, NEAR)
    await service.tell_index(shown=True)
    async with service.running() as second:
        first = await nearest(second)
        service.index.down = True
        assert await nearest(second) == first == ["alpha"]


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ({field: FAR[field]}, {field: {"in": [FAR[field], NEAR[field]]}})
        for field in ("user_id", "agent_id", "session_id", "memory_type")
    ]
    + [
        ({"occurred_at": {"lt": "2024-01-01T00:00:00Z"}}, {"occurred_at": {"lt": "2025-01-01T00:00:00Z"}}),
        ({"user_id": "u1"}, {"user_id": "u2"}),
        ({"user_id": "u1"}, {}),
    ],
)
async def test_another_filter_is_another_question(
    client: httpx2.AsyncClient, service: Service, narrow: dict[str, Any], wide: dict[str, Any]
) -> None:
    await write(client, FAR, NEAR)
    await service.tell_index(shown=True)
    for order in ((narrow, wide, narrow), (wide, narrow, wide)):
        async with service.running() as fresh:
            for filters in order:
                contents = [FAR["content"]] if filters is narrow else [NEAR["content"]]
                assert await nearest(fresh, filters=filters) == contents


async def test_another_query_is_another_question(client: httpx2.AsyncClient, service: Service) -> None:
    await write(client, FAR, NEAR)
    await service.tell_index(shown=True)
    async with service.running() as second:
        for query, content in (("alpha", NEAR), ("beta gamma", FAR), ("alpha", NEAR)):
            assert await nearest(second, query) == [content["content"]]


@pytest.mark.parametrize("counts", [(1, 3, 1), (3, 1, 3)])
async def test_other_candidates_are_another_question(
    client: httpx2.AsyncClient, service: Service, counts: tuple[int, ...]
) -> None:
    await write(client, *(FAR | {"content": f"alpha {rest}"} for rest in ("one", "two three", "four five six seven")))
    await service.tell_index(shown=True)
    alone: dict[int, list[str]] = {}
    for count in set(counts):
        async with service.running() as fresh:
            alone[count] = await nearest(fresh, count=count)
        assert len(alone[count]) == count
    async with service.running() as remembering:
        for count in counts:
            assert await nearest(remembering, count=count) == alone[count]


async def test_another_tenant_is_another_asker(
    client: httpx2.AsyncClient, service: Service, database: Database, tenant: TenantId
) -> None:
    """Even where the ids of one tenant would be thrown away by Postgres: the other's index has to be asked."""
    other = await make_tenant(database)
    await write(client, FAR, NEAR)
    await service.tell_index(shown=True)
    service.tenant = other
    client.headers.update(service.headers(other))
    await write(client, {"content": "alpha of theirs"})
    await service.tell_index(shown=True)
    async with service.running() as second:
        for asker, contents in ((tenant, ["alpha"]), (other, ["alpha of theirs"]), (tenant, ["alpha"])):
            second.headers.update(service.headers(asker))
            assert await nearest(second, candidates=200) == contents


async def test_what_was_written_since_is_asked_for_once_the_index_alone_has_it(
    client: httpx2.AsyncClient, service: Service
) -> None:
    await write(client, FAR)
    await service.tell_index(shown=True)
    async with service.running() as second:
        assert await nearest(second) == [FAR["content"]]
        await write(second, NEAR)
        await service.tell_index(shown=True)
        assert await nearest(second) == [NEAR["content"]]


async def test_another_generation_is_another_index(
    client: httpx2.AsyncClient, service: Service, tenant: TenantId
) -> None:
    """The same model makes the same vector of the query; the old collection had lost a memory."""
    ids = await write(client, FAR, NEAR)
    await service.tell_index(shown=True)
    async with service.running() as second:
        async with service.database.tenant(tenant) as connection:
            rows = await index_rows(tenant, connection, [Revision(ids[1], 1)], generation=1)
        await service.index.delete(tenant, service.generation, [row.key for row in rows])
        assert await nearest(second) == [FAR["content"]]
        await _rebuild(service, ids)
        assert await nearest(second) == [NEAR["content"]]


async def _rebuild(service: Service, ids: list[UUID]) -> Generation:
    """Another generation of the same model, complete and active."""
    like = NewGeneration(model="hash", dim=64, index_type="HNSW", index_params={})
    async with service.database.tenant(service.tenant) as connection:
        await generations.hold_writes(service.tenant, connection, wait_s=1)
        made = await generations.add_generation(service.tenant, connection, like, made_by=uuid4())
        await connection.execute(
            """
            INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, embedding)
            SELECT tenant_id, $2, memory_id, rev, n, span_start, span_end, embedding
            FROM chunk WHERE tenant_id = $1 AND generation = 1
            """,
            service.tenant,
            made.number,
        )
        rows = await index_rows(service.tenant, connection, [Revision(each, 1) for each in ids], generation=made.number)
        await service.index.ensure(service.tenant, made)
        await service.index.upsert(service.tenant, made, rows)
        await generations.mark_ready(service.tenant, connection, made)
        assert await generations.activate(service.tenant, connection, made.number, grace_s=60)
    return made

"""A search in a process that takes the tenant's old generation for the active one."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import httpx2
import pytest
from tests.integration.retrieval.conftest import SECRET, Service

from memplane_core.domain.embedding import EmbedItem, Lane, ModelProfile
from memplane_core.domain.index import FloatArray, Generation
from memplane_core.domain.memory import head_of
from memplane_core.domain.ports import EmbeddedText
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage import generations
from memplane_core.storage.generations import NewGeneration
from memplane_core.storage.outbox import Revision, index_rows
from memplane_core.storage.session import Database, pack_vector
from memplane_core.testing.embedder import HashEmbedder
from memplane_retrieval.settings import RetrievalSettings

pytestmark = pytest.mark.anyio

AT = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
OTHER = NewGeneration(model="other", dim=32, index_type="HNSW", index_params={})
QUERY = "cat sofa"
CONTENTS = ("the cat sleeps on the red sofa", "a cat", "quarterly revenue grew")

Mode = Literal["hybrid", "dense", "lexical"]


class TwoModels(HashEmbedder):
    """Serves `hash` at 64 dimensions and `other` at 32."""

    def __init__(self) -> None:
        super().__init__(models=("hash",))
        self._other = HashEmbedder(dim=OTHER.dim, models=(OTHER.model,))

    async def embed_query(self, tenant: TenantId, text: str, *, model: str, timeout_s: float) -> FloatArray:
        if model == OTHER.model:
            return await self._other.embed_query(tenant, text, model=model, timeout_s=timeout_s)
        return await super().embed_query(tenant, text, model=model, timeout_s=timeout_s)

    async def embed_passages(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, model: str, lane: Lane, timeout_s: float
    ) -> list[EmbeddedText]:
        if model == OTHER.model:
            return await self._other.embed_passages(tenant, items, model=model, lane=lane, timeout_s=timeout_s)
        return await super().embed_passages(tenant, items, model=model, lane=lane, timeout_s=timeout_s)

    async def profile(self, model: str) -> ModelProfile:
        return await (self._other if model == OTHER.model else super()).profile(model)


@pytest.fixture
def service(database: Database, tenant: TenantId, postgres_settings: PostgresSettings) -> Service:
    """One that looks for another generation once in ten minutes, and so in none of these tests."""
    settings = RetrievalSettings.model_validate(
        {
            "postgres": postgres_settings,
            "redis": {"broker_url": "redis://127.0.0.1:1/0", "cache_url": "redis://127.0.0.1:1/0"},
            "milvus": {"uri": "http://127.0.0.1:1"},
            "trust": {"internal_secret": SECRET},
            "search": {"generation_cache_s": 600},
        }
    )
    made = Service(database, tenant, settings)
    made.embedder = TwoModels()
    return made


async def passages(service: Service, model: str) -> dict[str, FloatArray]:
    """The vector of each content, as it is indexed."""
    items = [EmbedItem(content, head_of(None, AT)) for content in CONTENTS]
    embedded = await service.embedder.embed_passages(service.tenant, items, model=model, lane="write", timeout_s=1)
    return {content: one.vectors[0] for content, one in zip(CONTENTS, embedded, strict=True)}


async def cosines(service: Service, model: str) -> dict[str, float]:
    """What the model says about the query and each content."""
    query = await service.embedder.embed_query(service.tenant, QUERY, model=model, timeout_s=1)
    return {content: float(vector @ query) for content, vector in (await passages(service, model)).items()}


async def write(client: httpx2.AsyncClient) -> dict[str, UUID]:
    memories = [{"content": content, "scene": ["home"], "occurred_at": AT.isoformat()} for content in CONTENTS]
    response = await client.post("/v1/memories/batch", json={"memories": memories})
    assert response.status_code == 200, response.text
    return {content: UUID(item["id"]) for content, item in zip(CONTENTS, response.json()["results"], strict=True)}


async def search(client: httpx2.AsyncClient, mode: Mode, **fields: Any) -> dict[str, float | None]:
    """Each content that was found, and its cosine."""
    body = {"query": QUERY, "mode": mode, "touch": False, "explain": True, "min_relevance": 0} | fields
    response = await client.post("/v1/memories/search", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["degraded"] == []
    return {result["content"]: result["explain"]["cosine"] for result in response.json()["results"]}


async def fill_another(service: Service, ids: dict[str, UUID]) -> Generation:
    """A generation of the other model that is complete, in Postgres and in the index."""
    async with service.database.tenant(service.tenant) as connection:
        await generations.hold_writes(service.tenant, connection, wait_s=1)
        made = await generations.add_generation(service.tenant, connection, OTHER, made_by=uuid4())
        for content, vector in (await passages(service, OTHER.model)).items():
            await connection.execute(
                "INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, embedding)"
                " VALUES ($1, $2, $3, 1, 0, 0, $4, $5::vector)",
                *(service.tenant, made.number, ids[content], len(content), pack_vector(vector)),
            )
        rows = await index_rows(
            service.tenant, connection, [Revision(each, 1) for each in ids.values()], generation=made.number
        )
        await generations.mark_ready(service.tenant, connection, made)
    assert len(rows) == len(ids)
    await service.index.ensure(service.tenant, made)
    await service.index.upsert(service.tenant, made, rows)
    return made


async def flip(service: Service, to: Generation, *, emptied: bool) -> None:
    """Let it answer; with `emptied` nothing is left of the one before but a collection."""
    async with service.database.tenant(service.tenant) as connection:
        await generations.hold_writes(service.tenant, connection, wait_s=1)
        assert await generations.activate(service.tenant, connection, to.number, grace_s=60)
        if emptied:
            await connection.execute("DELETE FROM chunk WHERE tenant_id = $1 AND generation = 1", service.tenant)
    if emptied:
        await service.index.drop(service.tenant, service.generation)
        await service.index.ensure(service.tenant, service.generation)


def expected(by_model: dict[str, float], mode: Mode) -> dict[str, Any]:
    """All that the mode finds, and the model's cosines where it looks at meaning."""
    if mode == "lexical":
        return {content: None for content in by_model if "cat" in content}
    return {content: pytest.approx(cosine, abs=1e-5) for content, cosine in by_model.items()}


@pytest.mark.parametrize("emptied", [True, False])
@pytest.mark.parametrize("filters", [{}, {"scene": ["home"]}], ids=["unfiltered", "answered by Postgres alone"])
@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
class TestAfterAFlipThatTheProcessHasNotHeardOf:
    async def test_it_starts_over_and_answers_from_the_new_one(
        self, service: Service, mode: Mode, *, filters: dict[str, Any], emptied: bool
    ) -> None:
        async with service.running() as writer:
            ids = await write(writer)
        await service.tell_index(shown=True)
        async with service.running() as client:
            before = await cosines(service, "hash")
            after = await cosines(service, OTHER.model)
            assert all(abs(before[content] - after[content]) > 1e-3 for content in CONTENTS)
            assert await search(client, mode, filters=filters) == expected(before, mode)
            new = await fill_another(service, ids)
            assert await search(client, mode, filters=filters) == expected(before, mode)

            await flip(service, new, emptied=emptied)
            for _ in range(2):  # the second time it knows
                assert await search(client, mode, filters=filters) == expected(after, mode)

    async def test_it_does_so_where_what_it_has_would_be_enough(
        self, service: Service, mode: Mode, *, filters: dict[str, Any], emptied: bool
    ) -> None:
        """One result asked for, and one nominated: nobody would be asked for more."""
        async with service.running() as writer:
            ids = await write(writer)
        await service.tell_index(shown=True)
        async with service.running() as client:
            one = {"filters": filters, "top_k": 1, "candidates": 1}
            await search(client, mode, **one)
            await flip(service, await fill_another(service, ids), emptied=emptied)
            after = expected(await cosines(service, OTHER.model), mode)
            [(content, cosine)] = (await search(client, mode, **one)).items()
            assert cosine == after[content]

"""Recalls, from the search to the usage of what it found."""

from collections.abc import AsyncGenerator, Generator
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis
from tests.integration.retrieval.conftest import Service

from memplane_core.testing.rows import eventually
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.access import AccessFold
from memplane_retrieval.touches import Touches

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def valkey() -> Generator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
async def stream(valkey: ValkeyServer, service: Service) -> AsyncGenerator[Redis]:
    """Where the service's recalls go."""
    async with Redis.from_url(valkey.url, protocol=3) as client:
        await client.flushall()
        service.touches = Touches(client)
        async with service.touches.running():
            yield client


async def recalled(stream: Redis, service: Service, wanted: int) -> dict[str, int]:
    """How often each memory was recalled, once so many entries have been folded."""
    fold = AccessFold(service.database, stream)
    entries = [0]

    async def folded() -> int:
        entries[0] += (await fold.run()).entries
        return entries[0]

    assert await eventually(folded, lambda count: count >= wanted) == wanted
    async with service.database.tenant(service.tenant) as connection:
        rows = await connection.fetch("SELECT memory_id, access_count FROM memory_usage")
    return {str(row["memory_id"]): row["access_count"] for row in rows}


async def test_a_search_counts_for_what_it_found_and_one_without_touch_leaves_no_trace(
    client: httpx2.AsyncClient, service: Service, stream: Redis
) -> None:
    ids: list[str] = []
    for text in ("zebras are striped", "the library opens at nine"):
        answer = await client.post("/v1/memories", json={"content": text})
        ids.append(answer.json()["id"])
    async with service.database.tenant(service.tenant) as connection:
        await connection.execute("UPDATE memory_usage SET last_accessed_at = last_accessed_at - interval '1 hour'")
    before: list[dict[str, Any]] = [(await client.get(f"/v1/memories/{its}")).json() for its in ids]
    async with service.running() as searching:
        for touch in (False, True, True):
            body = {"query": "zebras striped", "touch": touch, "mode": "lexical"}
            answer = await searching.post("/v1/memories/search", json=body)
            assert [found["id"] for found in answer.json()["results"]] == ids[:1]
    # Two searches within a minute are one use.
    assert await recalled(stream, service, 2) == {ids[0]: 1, ids[1]: 0}
    after = [(await client.get(f"/v1/memories/{its}")).json() for its in ids]
    assert after[1] == before[1]
    assert after[0]["last_accessed_at"] > before[0]["last_accessed_at"]
    same = {name: value for name, value in before[0].items() if name not in ("last_accessed_at", "access_count")}
    assert after[0] == {**same, "access_count": 1, "last_accessed_at": after[0]["last_accessed_at"]}

"""A memory that changes between the moment a search ranks it and the moment it reads what it shows of it."""

import asyncio
from typing import Any
from uuid import UUID

import httpx2
import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import bootstrap
from memplane_core.testing.postgres import PostgresServer

pytestmark = pytest.mark.anyio


async def search(client: httpx2.AsyncClient, filters: dict[str, Any]) -> list[dict[str, Any]]:
    """By words alone: only what is shown is read from the outbox, which tells how the index stands."""
    body = {"query": "diary", "mode": "lexical", "filters": filters, "top_k": 1, "touch": False, "explain": True}
    response = await client.post("/v1/memories/search", json=body)
    assert response.status_code == 200, response.text
    return response.json()["results"]


@pytest.fixture
def owner_url(postgres: PostgresServer, database_name: str) -> str:
    return postgres.owner_url(database_name)


async def searched_while(
    client: httpx2.AsyncClient, tenant: TenantId, change: str, *, filters: dict[str, Any], owner_url: str
) -> list[dict[str, Any]]:
    """Hold the search where it reads what it shows, change the memories that are ranked by then, and let it go on."""
    other = await bootstrap.connect(owner_url)
    try:
        await other.execute("BEGIN")
        await other.fetchval("SELECT set_config('memplane.tenant', $1, true)", str(tenant))
        await other.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        searching = asyncio.create_task(search(client, filters))
        async with asyncio.timeout(10):
            while not await other.fetchval(
                "SELECT count(*) FROM pg_locks WHERE relation = 'outbox'::regclass AND NOT granted"
            ):
                assert not searching.done()
                await asyncio.sleep(0.01)
        await other.execute(f"UPDATE memory SET {change}, version = version + 1 WHERE tenant_id = $1", tenant)
        await other.execute("COMMIT")
        return await searching
    finally:
        await other.close()


@pytest.mark.parametrize(
    ("change", "filters"),
    [
        ("user_id = 'u2', content = 'a secret of u2'", {"user_id": "u1"}),
        ("""metadata = '{"room": "b"}'""", {"metadata.room": "a"}),
        ("state = 'forgotten'", {"user_id": "u1"}),
        ("expires_at = now() - interval '1 second'", {"user_id": "u1"}),
    ],
)
async def test_what_matches_no_more_is_not_shown(
    client: httpx2.AsyncClient, tenant: TenantId, owner_url: str, change: str, filters: dict[str, Any]
) -> None:
    memory = {"content": "a diary", "user_id": "u1", "metadata": {"room": "a"}}
    assert (await client.post("/v1/memories", json=memory)).status_code == 201
    assert [result["content"] for result in await search(client, filters)] == ["a diary"]
    assert await searched_while(client, tenant, change, filters=filters, owner_url=owner_url) == []


async def test_what_still_matches_is_shown_as_it_is_by_then(
    client: httpx2.AsyncClient, tenant: TenantId, owner_url: str
) -> None:
    memory = {"content": "a diary", "user_id": "u1", "importance": 0.5}
    memory_id = UUID((await client.post("/v1/memories", json=memory)).json()["id"])
    [found] = await searched_while(client, tenant, "importance = 0.9", filters={"user_id": "u1"}, owner_url=owner_url)
    assert (UUID(found["id"]), found["version"], found["importance"]) == (memory_id, 2, 0.9)
    assert found["explain"]["importance"] == 0.5  # it had been ranked before

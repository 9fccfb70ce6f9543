"""What a search keeps of Postgres while the index is being asked."""

import asyncio
from uuid import UUID

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.domain.index import FloatArray, Generation, IndexFilter
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.session import Database
from memplane_core.testing.index import MemoryIndex

pytestmark = pytest.mark.anyio


class HeldIndex(MemoryIndex):
    """Answers when it is let go.

    Attributes:
        asked: Somebody waits for an answer.
        let_go: From now on it answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def search(
        self, tenant: TenantId, generation: Generation, vector: FloatArray, *, limit: int, where: IndexFilter
    ) -> list[UUID]:
        self.asked.set()
        await self.let_go.wait()
        return await super().search(tenant, generation, vector, limit=limit, where=where)


async def test_an_index_that_takes_long_keeps_no_connection_from_others(
    client: httpx2.AsyncClient, service: Service, postgres_settings: PostgresSettings
) -> None:
    path = f"/v1/memories/{(await client.post('/v1/memories', json={'content': 'alpha'})).json()['id']}"
    service.index = index = HeldIndex()
    await service.tell_index(shown=True)
    only_one = postgres_settings.model_copy(update={"pool_max": 1})
    async with Database.open(only_one) as service.database, service.running() as second, asyncio.timeout(30):
        body = {"query": "alpha", "mode": "dense", "touch": False}
        searching = asyncio.create_task(second.post("/v1/memories/search", json=body))
        await index.asked.wait()
        assert ((await second.get(path)).status_code, searching.done()) == (200, False)
        index.let_go.set()
        assert [found["content"] for found in (await searching).json()["results"]] == ["alpha"]

"""What writes and searches do while a tenant's generations change under them."""

from uuid import UUID, uuid4

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.domain.index import Generation
from memplane_core.storage import generations
from memplane_core.storage.generations import NewGeneration
from memplane_core.testing.embedder import HashEmbedder

pytestmark = pytest.mark.anyio

NEW = NewGeneration(model="other", dim=64, index_type="HNSW", index_params={})


async def begin(service: Service) -> Generation:
    """Another generation, which is fed from now on."""
    async with service.database.tenant(service.tenant) as connection:
        await generations.hold_writes(service.tenant, connection, wait_s=1)
        return await generations.add_generation(service.tenant, connection, NEW, made_by=uuid4())


async def switch(service: Service, number: int) -> None:
    """Let it answer, without asking whether it is complete."""
    async with service.database.tenant(service.tenant) as connection:
        await generations.hold_writes(service.tenant, connection, wait_s=1)
        assert await generations.activate(service.tenant, connection, number, grace_s=60)


async def chunks_by_generation(service: Service, memory_id: str) -> dict[int, int]:
    """How many chunks with vectors a memory has in each."""
    async with service.database.tenant(service.tenant) as connection:
        rows = await connection.fetch(
            "SELECT generation, count(embedding) AS n FROM chunk WHERE memory_id = $1 GROUP BY generation",
            UUID(memory_id),
        )
    return {row["generation"]: row["n"] for row in rows}


async def queued_for(service: Service, memory_id: str) -> list[int]:
    """The generations that a memory's revisions wait for."""
    async with service.database.tenant(service.tenant) as connection:
        rows = await connection.fetch(
            "SELECT DISTINCT generation FROM outbox WHERE memory_id = $1 AND op = 'upsert' ORDER BY 1", UUID(memory_id)
        )
    return [row["generation"] for row in rows]


class TestWriting:
    async def test_while_another_is_built_every_write_is_queued_for_both(
        self, service: Service, client: httpx2.AsyncClient
    ) -> None:
        service.embedder = HashEmbedder(models=("hash", "other"))
        old = (await client.post("/v1/memories", json={"content": "before"})).json()["id"]
        await begin(service)
        new = (await client.post("/v1/memories", json={"content": "meanwhile"})).json()["id"]
        assert (await queued_for(service, old), await queued_for(service, new)) == ([1], [1, 2])
        await client.patch(f"/v1/memories/{old}", json={"user_id": "u"})
        assert await queued_for(service, old) == [1, 2]

    async def test_after_the_switch_they_are_embedded_for_the_new_one_at_once(self, service: Service) -> None:
        service.embedder = HashEmbedder(models=("hash", "other"))
        async with service.running() as client:
            old = (await client.post("/v1/memories", json={"content": "before"})).json()["id"]
            await begin(service)
            await switch(service, 2)  # which the service does not know for up to five seconds
            new = await client.post("/v1/memories", json={"content": "afterwards"})
            assert new.status_code == 201
            assert await chunks_by_generation(service, new.json()["id"]) == {2: 1}
            await switch(service, 1)
            edited = await client.patch(f"/v1/memories/{old}", json={"content": "edited"})
            assert edited.status_code == 200
            assert await chunks_by_generation(service, old) == {1: 1}
            await switch(service, 2)
            batch = {"memories": [{"content": "a"}, {"content": "b", "external_id": "b"}]}
            written = (await client.post("/v1/memories/batch", json=batch)).json()["results"]
            for item in written:
                assert await chunks_by_generation(service, item["id"]) == {2: 1}
            found = await client.post("/v1/memories/search", json={"query": "afterwards", "touch": False})
            assert found.json()["results"][0]["id"] == new.json()["id"]

    async def test_one_that_is_being_dropped_is_told_of_nothing(
        self, service: Service, client: httpx2.AsyncClient
    ) -> None:
        generation = await begin(service)
        async with service.database.tenant(service.tenant) as connection:
            await connection.execute("UPDATE generation SET life = 'dropping' WHERE number = $1", generation.number)
        new = (await client.post("/v1/memories", json={"content": "not for it"})).json()["id"]
        await client.patch(f"/v1/memories/{new}", json={"content": "nor this"})
        assert await queued_for(service, new) == [1]


class TestAModelOfAnotherLength:
    async def test_writes_are_kept_and_searches_name_the_command(self, service: Service) -> None:
        service.embedder = HashEmbedder(dim=32)
        async with service.running() as client:
            stored = await client.post("/v1/memories", json={"content": "kept all the same"})
            assert (stored.status_code, stored.json()["index_state"]) == (202, "pending")
            assert await chunks_by_generation(service, stored.json()["id"]) == {1: 0}
            refused = await client.post("/v1/memories/search", json={"query": "kept", "mode": "dense"})
            assert (refused.status_code, refused.json()["code"]) == (409, "model_mismatch")
            assert "memplane reindex" in refused.json()["detail"]

"""The sweep over a real Postgres and a real Valkey."""

from collections.abc import AsyncGenerator
from uuid import UUID

import pytest
from redis.asyncio import Redis

from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.sweep import Sweep

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sweep(database: Database, valkey: ValkeyServer) -> AsyncGenerator[Sweep]:
    client: Redis = Redis.from_url(valkey.url, protocol=3)
    await client.flushall()
    yield Sweep(database, client, at_once=10_000)  # other tests leave work behind
    await client.aclose()


async def age_outbox(desk: MemoryDesk, memory_id: UUID, *, hours: float) -> None:
    """Let an outbox row have been done that long ago."""
    async with desk.database.tenant(desk.tenant) as connection:
        await connection.execute(
            "UPDATE outbox SET done_at = clock_timestamp() - make_interval(hours => $3)"
            " WHERE tenant_id = $1 AND memory_id = $2",
            desk.tenant,
            memory_id,
            hours,
        )


class TestFindingWork:
    async def test_a_tenant_is_found_while_something_is_due_and_not_after(
        self, desk: MemoryDesk, database: Database, sweep: Sweep, embedder: HashEmbedder
    ) -> None:
        assert desk.tenant not in (await sweep.run()).tenants
        [memory_id] = await desk.write("one")
        assert desk.tenant in (await sweep.run()).tenants
        drainer = Drainer(database, MemoryIndex(), embedder, limits=DrainLimits())
        await drainer.drain(desk.tenant)
        assert desk.tenant not in (await sweep.run()).tenants
        await desk.remove(memory_id)
        await drainer.drain(desk.tenant)
        assert desk.tenant not in (await sweep.run()).tenants  # the second removal is not due yet
        await desk.pass_time()
        assert desk.tenant in (await sweep.run()).tenants


class TestChores:
    async def test_only_what_was_done_an_hour_ago_is_thrown_away(
        self, desk: MemoryDesk, database: Database, sweep: Sweep, embedder: HashEmbedder
    ) -> None:
        old, recent = await desk.write("old", "recent")
        await Drainer(database, MemoryIndex(), embedder, limits=DrainLimits()).drain(desk.tenant)
        [pending] = await desk.write("pending")
        await age_outbox(desk, old, hours=2)
        assert (await sweep.run()).trimmed == 1
        assert {row.memory_id for row in await desk.outbox()} == {recent, pending}

    async def test_one_of_many_sweeps_does_them_every_few_minutes(
        self, desk: MemoryDesk, database: Database, sweep: Sweep, embedder: HashEmbedder
    ) -> None:
        await sweep.run()
        [old] = await desk.write("old")
        await Drainer(database, MemoryIndex(), embedder, limits=DrainLimits()).drain(desk.tenant)
        await age_outbox(desk, old, hours=2)
        assert (await sweep.run()).trimmed == 0

"""The access stream of a real Valkey, folded into a real Postgres."""

import asyncio
import time
from collections.abc import AsyncGenerator
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis

from memplane_core.contracts.jobs import ACCESS_STREAM
from memplane_core.domain.errors import Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.session import Database
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.access import AccessFold, FoldReport

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stream(valkey: ValkeyServer) -> AsyncGenerator[Redis]:
    client: Redis = Redis.from_url(valkey.url, protocol=3)
    await client.delete(ACCESS_STREAM)
    yield client
    await client.aclose()


async def recall(stream: Redis, tenant: TenantId, at: float, *memory_ids: UUID) -> None:
    fields = {"tenant": str(tenant), "at": repr(at), "ids": ",".join(str(memory_id) for memory_id in memory_ids)}
    await stream.xadd(ACCESS_STREAM, fields)  # pyright: ignore[reportArgumentType]


async def usage(desk: MemoryDesk, memory_id: UUID) -> tuple[float, int]:
    """When the memory was last recalled, in epoch seconds, and how often."""
    async with desk.database.tenant(desk.tenant) as connection:
        row = await connection.fetchrow(
            "SELECT extract(epoch FROM last_accessed_at)::float8 AS last, access_count FROM memory_usage"
            " WHERE tenant_id = $1 AND memory_id = $2",
            desk.tenant,
            memory_id,
        )
    assert row is not None
    return row["last"], row["access_count"]


async def age(desk: MemoryDesk, seconds: float) -> None:
    """Let the tenant's memories have been written that long ago."""
    async with desk.database.tenant(desk.tenant) as connection:
        await connection.execute(
            "UPDATE memory_usage SET last_accessed_at = last_accessed_at - make_interval(secs => $2)"
            " WHERE tenant_id = $1",
            desk.tenant,
            seconds,
        )


class TestFolding:
    async def test_recalls_of_several_tenants_arrive_each_at_its_own(
        self, desk: MemoryDesk, database: Database, stream: Redis
    ) -> None:
        [mine, idle] = await desk.write("mine", "idle")
        await age(desk, 3600)
        before = await usage(desk, idle)
        now = time.time()
        await recall(stream, desk.tenant, now - 600, mine)
        await recall(stream, TenantId(uuid4()), now - 5, mine, idle)  # ids of mine, in a tenant that is not
        await recall(stream, desk.tenant, now - 300, mine, uuid4())
        assert await AccessFold(database, stream).run() == FoldReport(entries=3, counted=2)
        assert await usage(desk, mine) == (pytest.approx(now - 300, abs=0.001), 2)
        assert await usage(desk, idle) == before
        assert await stream.xlen(ACCESS_STREAM) == 0

    async def test_a_fold_that_died_before_removing_entries_is_done_again_without_harm(
        self, desk: MemoryDesk, database: Database, stream: Redis
    ) -> None:
        [memory_id] = await desk.write("one")
        await age(desk, 3600)
        now = time.time()
        entries = [(now - 600, memory_id), (now - 590, memory_id), (now - 100, memory_id)]
        for _ in range(2):
            for at, touched in entries:
                await recall(stream, desk.tenant, at, touched)
            await AccessFold(database, stream).run()
            assert await usage(desk, memory_id) == (pytest.approx(now - 100, abs=0.001), 2)

    async def test_two_folds_at_once_count_once(self, desk: MemoryDesk, database: Database, stream: Redis) -> None:
        ids = await desk.write(*(f"text {n}" for n in range(20)))
        await age(desk, 3600)
        now = time.time()
        for n in range(1_500):
            await recall(stream, desk.tenant, now - n % 7, ids[n % 20])
        await asyncio.gather(*(AccessFold(database, stream).run() for _ in range(4)))
        assert {(await usage(desk, memory_id))[1] for memory_id in ids} == {1}
        assert await stream.xlen(ACCESS_STREAM) == 0

    async def test_recalls_outlive_a_deadlock_with_a_writer(
        self, desk: MemoryDesk, database: Database, stream: Redis
    ) -> None:
        low, high = sorted(await desk.write("one", "two"))
        await age(desk, 3600)
        await recall(stream, desk.tenant, time.time(), low, high)
        lock = "SELECT 1 FROM memory_usage WHERE tenant_id = $1 AND memory_id = $2 FOR UPDATE"
        async with database.tenant(desk.tenant) as writer:
            await writer.execute(lock, desk.tenant, high)
            fold = asyncio.create_task(AccessFold(database, stream).run())
            deadline = time.monotonic() + 10
            while await writer.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") == 0:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            # The fold holds `low` and has waited for `high` longer: it is the one that Postgres undoes.
            await writer.execute(lock, desk.tenant, low)

        assert (await fold).counted == 2
        assert [(await usage(desk, memory_id))[1] for memory_id in (low, high)] == [1, 1]

    async def test_entries_that_make_no_sense_are_thrown_away(
        self, desk: MemoryDesk, database: Database, stream: Redis
    ) -> None:
        [memory_id] = await desk.write("one")
        await age(desk, 3600)
        good = {"tenant": str(desk.tenant), "at": str(time.time()), "ids": str(memory_id)}
        for bad in (
            {"tenant": "nobody"},
            {"at": "nan"},
            {"at": "1e300"},
            {"at": "-1"},
            {"at": "soon"},
            {"ids": "a,b"},
            {"ids": b"\xff"},
        ):
            await stream.xadd(ACCESS_STREAM, good | bad)  # pyright: ignore[reportArgumentType]
        await stream.xadd(ACCESS_STREAM, {"something": "else"})
        await stream.xadd(ACCESS_STREAM, good)  # pyright: ignore[reportArgumentType]
        assert await AccessFold(database, stream).run() == FoldReport(entries=9, counted=1, malformed=8)
        assert (await usage(desk, memory_id))[1] == 1
        assert await stream.xlen(ACCESS_STREAM) == 0

    async def test_a_clock_that_is_ahead_moves_nothing_past_the_databases_now(
        self, desk: MemoryDesk, database: Database, stream: Redis
    ) -> None:
        [memory_id] = await desk.write("one")
        await age(desk, 3600)
        await recall(stream, desk.tenant, time.time() + 86_400, memory_id)
        await AccessFold(database, stream).run()
        last, count = await usage(desk, memory_id)
        assert count == 1
        assert last == pytest.approx(time.time(), abs=60)

    async def test_nothing_is_lost_while_postgres_is_away(self, desk: MemoryDesk, stream: Redis) -> None:
        [memory_id] = await desk.write("one")
        await recall(stream, desk.tenant, time.time(), memory_id)
        nowhere = PostgresSettings.model_validate({"url": "postgresql://memplane_app:x@127.0.0.1:1/memplane"})
        async with Database.open(nowhere) as away:
            with pytest.raises(Unavailable):
                await AccessFold(away, stream).run()
        assert await stream.xlen(ACCESS_STREAM) == 1

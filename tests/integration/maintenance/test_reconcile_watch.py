"""Collections that are lost, left over or foreign, and reconciles that nobody asked for.

The database has the tenants of other tests too, so that only what is said of a test's own tenants is looked at.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from redis.asyncio import Redis
from tests.integration.maintenance.reconciling import Reconciling

from memplane_core.domain.collections import CollectionName
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import JobRecord, list_jobs
from memplane_core.storage.leases import take_lease
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.jobs.reconcile_watch import IndexWatch

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


@pytest.fixture
def index() -> MemoryIndex:
    return MemoryIndex()


@pytest.fixture
def reconciling(desk: MemoryDesk, index: MemoryIndex, embedder: HashEmbedder) -> Reconciling:
    return Reconciling(desk, index, embedder)


@pytest.fixture
async def watch(
    database: Database, index: MemoryIndex, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Callable[..., IndexWatch]]:
    # One look reaches all tenants that other tests have left, however busy the machine is.
    monkeypatch.setattr("memplane_maintenance.jobs.reconcile_watch._RUN_S", 600)
    monkeypatch.setattr("memplane_maintenance.jobs.reconcile_watch._SCHEDULED_AT_ONCE", 10_000)
    client: Redis = Redis.from_url(valkey.url, protocol=3)
    await client.flushall()

    def make(*, every_s: float = 0.0, apart_s: float = 0.0) -> IndexWatch:
        return IndexWatch(database, index, client, every_s=every_s, apart_s=apart_s)

    yield make
    await client.aclose()


async def runs(desk: MemoryDesk) -> list[JobRecord]:
    """The tenant's reconciles, the newest first."""
    async with desk.database.tenant(desk.tenant) as connection:
        return await list_jobs(desk.tenant, connection, before=None, limit=100, kind="reconcile")


async def make(index: MemoryIndex, desk: MemoryDesk, number: int, *, tenant: TenantId | None = None) -> CollectionName:
    """A collection on the server."""
    generation = msgspec.structs.replace(await desk.generation(), number=number, tenant=tenant or desk.tenant)
    await index.ensure(generation.tenant, generation)
    return CollectionName(generation.tenant, number)


class TestALostCollection:
    async def test_one_reconcile_begins_by_itself_and_mends_it(
        self, reconciling: Reconciling, index: MemoryIndex, watch: Any
    ) -> None:
        desk = reconciling.desk
        await desk.write("one", "two")
        await reconciling.settle()
        assert desk.tenant not in (await watch().run()).lost
        await index.drop(desk.tenant, await desk.generation())
        assert desk.tenant in (await watch().run()).lost
        await watch().run()
        [job] = await runs(desk)
        assert (job.state, job.started_by) == ("queued", "memplane")
        assert (await reconciling.finish(job.id)).result["requeued"] == 2
        assert await reconciling.is_mended()
        assert desk.tenant not in (await watch().run()).lost
        assert len(await runs(desk)) == 1

    async def test_of_a_tenant_without_memories_nothing_is_missed(
        self, reconciling: Reconciling, index: MemoryIndex, watch: Any
    ) -> None:
        [memory_id] = await reconciling.desk.write("one")
        await reconciling.settle()
        await reconciling.desk.remove(memory_id)
        await reconciling.settle()
        await index.drop(reconciling.desk.tenant, await reconciling.desk.generation())
        assert reconciling.desk.tenant not in (await watch().run()).lost


class TestTheSchedule:
    async def test_a_run_begins_when_the_last_is_a_day_old_and_only_the_latest_are_kept(
        self, reconciling: Reconciling, watch: Any
    ) -> None:
        desk = reconciling.desk
        await desk.write("one")
        await reconciling.settle()
        await reconciling.sql("UPDATE tenant SET created_at = created_at - interval '25 hours'")
        assert desk.tenant not in (await watch(every_s=0).run()).scheduled
        asked = await reconciling.ask()
        assert desk.tenant not in (await watch(every_s=DAY_S).run()).scheduled
        await reconciling.finish(asked)
        for _ in range(12):
            await reconciling.sql("UPDATE job SET created_at = created_at - interval '25 hours'")
            assert desk.tenant in (await watch(every_s=DAY_S).run()).scheduled
            assert desk.tenant not in (await watch(every_s=DAY_S).run()).scheduled
            await reconciling.finish((await runs(desk))[0].id)
        kept = await runs(desk)
        assert [job.started_by for job in kept] == ["memplane"] * 11 + ["test"]

    async def test_what_was_not_looked_at_in_time_is_looked_at_next_time(
        self, reconciling: Reconciling, watch: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("memplane_maintenance.jobs.reconcile_watch._RUN_S", 0)
        monkeypatch.setattr("memplane_maintenance.jobs.reconcile_watch._PAGE", 3)
        await reconciling.desk.write("one")
        await reconciling.settle()
        await reconciling.index.drop(reconciling.desk.tenant, await reconciling.desk.generation())
        async with reconciling.desk.database.system() as connection:
            tenants = len(await connection.fetch("SELECT id FROM list_tenants(NULL, 100000)"))
        found: list[TenantId] = []
        for _ in range(tenants // 3 + 1):
            found += (await watch().run()).lost
        assert found.count(reconciling.desk.tenant) == 1


class TestWhatIsLeftOver:
    async def test_a_dropped_generations_collection_goes_when_it_was_seen_twice(
        self, desk: MemoryDesk, reconciling: Reconciling, index: MemoryIndex, watch: Any
    ) -> None:
        await reconciling.sql(
            "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params, life)"
            " SELECT tenant_id, 2, model, dim, index_type, index_params, 'dropped' FROM generation"
        )
        current, left = await make(index, desk, 1), await make(index, desk, 2)
        first = await watch().run()
        assert (left in first.orphans, left in first.dropped) == (True, False)
        assert left not in (await watch(apart_s=60).run()).dropped
        await take_lease(desk.tenant, desk.database, name="drain", owner="a drain", ttl_s=30)
        assert left not in (await watch().run()).dropped
        await desk.pass_time()
        assert left in (await watch().run()).dropped
        assert await index.collections() == [current]
        assert left not in (await watch().run()).orphans

    async def test_so_do_all_of_a_tenant_that_is_gone(
        self, desk: MemoryDesk, reconciling: Reconciling, index: MemoryIndex, watch: Any
    ) -> None:
        left = await make(index, desk, 1)
        await reconciling.sql("UPDATE tenant SET deleted_at = clock_timestamp()")
        await watch().run()
        assert left in (await watch().run()).dropped
        assert await index.collections() == []

    async def test_what_this_database_never_knew_may_be_anothers_and_stays(
        self, desk: MemoryDesk, index: MemoryIndex, watch: Any
    ) -> None:
        foreign = {
            await make(index, desk, 1, tenant=TenantId(uuid4())),
            await make(index, desk, 1, tenant=TenantId(uuid4())),
            await make(index, desk, 9),
        }
        for _ in range(3):
            report = await watch().run()
            assert (set(report.foreign), report.orphans, report.dropped) == (foreign, [], [])
        assert set(await index.collections()) == foreign

"""Jobs that begin by themselves.

The database has the tenants of other tests too, so that only what is begun for a test's own tenants is looked at.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymilvus import MilvusClient
from redis.asyncio import Redis

from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.storage.jobs import JobRecord, create_job, list_jobs
from memplane_core.storage.policies import change_policy
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.tenants import make_tenant
from memplane_core.testing.valkey import ValkeyServer
from memplane_core.vectors import MilvusIndex
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.jobs import JobRunner, all_jobs
from memplane_maintenance.jobs.schedule import Scheduler
from memplane_maintenance.metrics import JOBS_ENDED

pytestmark = pytest.mark.anyio

ALL_OFF = {kind: {"enabled": False} for kind in ("priorities", "prune", "merge", "expire", "purge", "reflect")}


class Calendar:
    """A tenant whose days pass, and a scheduler that looks at it."""

    def __init__(self, desk: MemoryDesk, client: Redis) -> None:
        self.desk = desk
        self.database = desk.database
        self.tenant = desk.tenant
        self.client = client

    async def begun(self, *, has_llm: bool = False) -> list[str]:
        """The kinds that one look begins for the tenant."""
        found = await Scheduler(self.database, self.client, has_llm=has_llm, at_once=10_000).run()
        return [its.kind for its in found if its.tenant == self.tenant]

    async def day(self) -> list[str]:
        """What is begun in a day, each run ended before the next look."""
        kinds, found = list[str](), await self.day_begins()
        while found:
            kinds += found
            await self.sql("UPDATE job SET state = 'done'")
            found = await self.begun()
        return kinds

    async def day_begins(self) -> list[str]:
        """What the first look begins a day later."""
        await self.sql("UPDATE job SET created_at = created_at - interval '1 day'")
        await self.sql("UPDATE tenant SET created_at = created_at - interval '1 day'")
        return await self.begun()

    async def policy(self, **maintenance: Any) -> None:
        """Change the tenant's."""
        async with self.database.tenant(self.tenant) as connection:
            await change_policy(self.tenant, connection, changes={"maintenance": maintenance})

    async def sql(self, query: str, *args: object) -> None:
        """Change the tenant's rows."""
        async with self.database.tenant(self.tenant) as connection:
            await connection.execute(query, *args)

    async def jobs(self) -> Sequence[JobRecord]:
        """The tenant's runs, the newest first."""
        async with self.database.tenant(self.tenant) as connection:
            return await list_jobs(self.tenant, connection, before=None, limit=100)


@pytest.fixture
async def calendar(desk: MemoryDesk, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Calendar]:
    # One look reaches all tenants that other tests have left, however busy the machine is.
    monkeypatch.setattr("memplane_maintenance.jobs.schedule._RUN_S", 600)
    client: Redis = Redis.from_url(valkey.url, protocol=3)
    await client.flushall()
    yield Calendar(desk, client)
    await client.aclose()


async def test_what_is_on_begins_once_a_day_where_there_is_something_to_do(calendar: Calendar) -> None:
    assert await calendar.day() == []  # no memory yet
    ids = await calendar.desk.write("one", "two", "three")
    assert await calendar.begun() == ["priorities"]
    assert await calendar.begun() == []
    await calendar.sql("UPDATE job SET state = 'done'")
    assert await calendar.begun() == []
    assert await calendar.day() == ["priorities"]
    past = datetime.now(UTC) - timedelta(days=31)
    await calendar.sql("UPDATE memory SET expires_at = $2 WHERE id = $1", ids[0], past)
    await calendar.sql("UPDATE memory SET state = 'forgotten', purge_at = $2 WHERE id = $1", ids[1], past)
    assert await calendar.day() == ["expire", "purge", "priorities"]
    [job, *_] = await calendar.jobs()
    assert (job.started_by, job.dry_run, job.params["feedback_weight"]) == ("memplane", False, 1.0)


async def test_prune_merge_and_reflect_wait_to_be_switched_on(calendar: Calendar) -> None:
    await calendar.desk.write("one")
    on = {kind: {"enabled": True} for kind in ALL_OFF}
    await calendar.policy(**{**on, "prune": {"enabled": True, "max_idle_days": 90}})
    assert await calendar.day() == ["priorities", "merge", "prune"]
    [job] = [job for job in await calendar.jobs() if job.kind == "prune"]
    assert job.params["rules"]["max_idle_days"] == 90
    assert await calendar.begun(has_llm=True) == ["reflect"]


async def test_nothing_begins_where_all_is_off_or_its_time_has_not_come(calendar: Calendar) -> None:
    await calendar.desk.write("one")
    await calendar.policy(**ALL_OFF)
    assert await calendar.day() == []
    await calendar.policy(priorities={"every_hours": 48})
    assert [await calendar.day() for _ in range(5)] == [["priorities"], [], ["priorities"], [], ["priorities"]]


async def test_a_run_that_somebody_asked_for_counts_and_a_dry_one_does_not(calendar: Calendar) -> None:
    await calendar.desk.write("one")
    await calendar.sql("UPDATE tenant SET created_at = created_at - interval '1 day'")
    for dry_run, begun in ((False, []), (True, ["priorities"])):
        await calendar.sql("DELETE FROM job")
        async with calendar.database.tenant(calendar.tenant) as connection:
            asked: dict[str, Any] = {"kind": "priorities", "params": {}, "dry_run": dry_run, "started_by": "a-key"}
            await create_job(calendar.tenant, connection, **asked)
        assert await calendar.begun() == []  # it is under way
        await calendar.sql("UPDATE job SET state = 'done'")
        assert await calendar.begun() == begun


async def test_of_what_began_by_itself_the_latest_ten_runs_are_kept(calendar: Calendar) -> None:
    await calendar.desk.write("one")
    for _ in range(13):
        assert await calendar.day() == ["priorities"]
    assert len(await calendar.jobs()) == 11  # the newest had not ended when the others were counted


async def test_each_look_goes_on_where_the_one_before_had_to_stop(calendar: Calendar, database: Database) -> None:
    others = [await make_tenant(database) for _ in range(4)]
    await calendar.desk.write("one")
    for tenant in others:
        await MemoryDesk(database, tenant, calendar.desk._embedder).write("one")  # pyright: ignore[reportPrivateUsage]
    mine = {calendar.tenant, *others}
    for tenant in mine:
        async with database.tenant(tenant) as connection:
            await connection.execute("UPDATE tenant SET created_at = created_at - interval '1 day'")
    order: list[TenantId] = []
    for _ in range(200):
        found = await Scheduler(database, calendar.client, at_once=1).run()
        order += [its.tenant for its in found if its.tenant in mine]
        if len(order) == len(mine):
            break
    assert order == sorted(mine)


async def test_a_hundred_tenants_at_once_all_finish_and_one_whose_collection_is_broken_fails_alone(
    calendar: Calendar, database: Database, embedder: HashEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a real index, in which three have a collection. What needs the broken one fails, and says what mends it."""
    monkeypatch.setattr("memplane_maintenance.jobs.merge_planning._WORTH_A_SEARCH", 0)  # else Postgres does without it
    monkeypatch.setattr("memplane_maintenance.jobs.merge_planning.SCAN_LIMIT", 1)
    monkeypatch.setattr("memplane_maintenance.jobs.merge._SETTLES", 0)
    tenants = [calendar.tenant, *[await make_tenant(database) for _ in range(99)]]
    indexed, broken = tenants[49:52], tenants[50]
    with MilvusLite() as milvus:
        async with contextlib.AsyncExitStack() as closing:
            index = MilvusIndex(MilvusSettings(uri=milvus.uri))
            closing.push_async_callback(index.close)
            drainer = Drainer(database, index, embedder, limits=DrainLimits(fresh_s=0.0))
            for tenant in tenants:
                desk = MemoryDesk(database, tenant, embedder)
                await desk.write("one", "One!", embedded=tenant in indexed, priority=5)
                async with database.tenant(tenant) as connection:
                    await connection.execute("UPDATE memory SET created_at = created_at - interval '300 days'")
                    await connection.execute("UPDATE tenant SET created_at = created_at - interval '1 day'")
                if tenant in indexed:
                    assert (await drainer.drain(tenant)).indexed == 2
            await asyncio.to_thread(
                replace_collection, milvus, (await MemoryDesk(database, broken, embedder).generation())
            )
            begun = await Scheduler(database, calendar.client, at_once=10_000).run()
            assert {its.tenant for its in begun} >= set(tenants)
            for tenant in tenants:
                async with database.tenant(tenant) as connection:
                    for kind, params in (("merge", {"threshold": 0.9}), ("reconcile", {})):
                        await create_job(tenant, connection, kind=kind, params=params, dry_run=False, started_by="test")

            after = MilvusIndex(MilvusSettings(uri=milvus.uri))  # of a worker that was started since
            closing.push_async_callback(after.close)
            runner = JobRunner(database, all_jobs(database, after, drainer.drain, profile=embedder.profile))
            failed = {kind: _failed(kind) for kind in ("merge", "reconcile")}
            for tenant in tenants:
                async with database.tenant(tenant) as connection:
                    jobs = await list_jobs(tenant, connection, before=None, limit=5)
                assert {job.kind for job in jobs} == {"priorities", "merge", "reconcile"}
                for job in reversed(jobs):
                    await runner.run(tenant, job.id)
            for tenant in tenants:
                async with database.tenant(tenant) as connection:
                    jobs = await list_jobs(tenant, connection, before=None, limit=5)
                for job in jobs:
                    if tenant == broken and job.kind != "priorities":
                        assert job.error is not None
                        assert (job.state, "is none that Memplane has made" in job.error) == ("failed", True), job
                        assert "`memplane reindex`" in job.error
                    else:
                        assert (job.state, job.error) == ("done", None), job
            assert {kind: _failed(kind) - before for kind, before in failed.items()} == {"merge": 1, "reconcile": 1}


def replace_collection(milvus: MilvusLite, generation: Generation) -> None:
    """Put one that somebody else made, for vectors of the same length, in the place of a generation's."""
    client: Any = MilvusClient(uri=milvus.uri)
    try:
        assert client.has_collection(generation.collection)
        client.drop_collection(generation.collection)
        client.create_collection(generation.collection, dimension=generation.dim)
    finally:
        client.close()


def _failed(kind: str) -> float:
    samples = [sample for metric in JOBS_ENDED.collect() for sample in metric.samples if sample.name.endswith("_total")]
    return sum(its.value for its in samples if (its.labels["kind"], its.labels["state"]) == (kind, "failed"))


async def test_a_policy_that_nothing_can_be_begun_by_holds_up_no_other_tenant(
    calendar: Calendar, database: Database
) -> None:
    tenants = sorted([calendar.tenant, *[await make_tenant(database) for _ in range(2)]])
    for tenant in tenants:
        await MemoryDesk(database, tenant, calendar.desk._embedder).write("one")  # pyright: ignore[reportPrivateUsage]
        async with database.tenant(tenant) as connection:
            await connection.execute("UPDATE tenant SET created_at = created_at - interval '1 day'")
    senseless: dict[str, Any] = {"maintenance": {"priorities": {"thresholds": [3, 2, 1, 0]}}}
    async with database.tenant(tenants[0]) as connection:
        await connection.execute("UPDATE tenant SET policy = $1", senseless)
    begun = await Scheduler(database, calendar.client, at_once=10_000).run()
    assert [its.tenant for its in begun if its.tenant in tenants] == tenants[1:]


async def test_what_is_held_up_keeps_nothing_else_from_beginning(calendar: Calendar) -> None:
    await calendar.desk.write("one")
    await calendar.policy(**{**ALL_OFF, "merge": {"enabled": True}})
    assert await calendar.day_begins() == ["merge"]
    await calendar.policy(priorities={"enabled": True}, prune={"enabled": True})
    assert await calendar.day_begins() == []
    await calendar.sql("UPDATE job SET state = 'running', error = 'the index is away'")
    assert await calendar.day_begins() == ["priorities"]
    await calendar.sql("UPDATE job SET state = 'done' WHERE kind = 'priorities'")
    assert await calendar.begun() == ["prune"]

"""Jobs that begin by themselves.

The database has the tenants of other tests too, so that only what is begun for a test's own tenants is looked at.
"""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import JobRecord, create_job, list_jobs
from memplane_core.storage.policies import change_policy
from memplane_core.storage.session import Database
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.tenants import make_tenant
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.priorities import Priorities
from memplane_maintenance.jobs.schedule import Scheduler

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
async def calendar(desk: MemoryDesk, valkey: ValkeyServer) -> AsyncGenerator[Calendar]:
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


async def test_a_hundred_tenants_at_once_all_finish_and_a_broken_one_fails_alone(
    calendar: Calendar, database: Database
) -> None:
    tenants = [calendar.tenant, *[await make_tenant(database) for _ in range(99)]]
    for tenant in tenants:
        desk = MemoryDesk(database, tenant, calendar.desk._embedder)  # pyright: ignore[reportPrivateUsage]
        await desk.write("one", embedded=False, priority=5)
        async with database.tenant(tenant) as connection:
            await connection.execute("UPDATE memory SET created_at = created_at - interval '300 days'")
            await connection.execute("UPDATE tenant SET created_at = created_at - interval '1 day'")
    begun = await Scheduler(database, calendar.client, at_once=10_000).run()
    assert {its.tenant for its in begun} >= set(tenants)
    broken = tenants[50]
    async with database.tenant(broken) as connection:
        await connection.execute("UPDATE job SET params = $1", {"thresholds": "none"})
    runner = JobRunner(database, {"priorities": Priorities(database)})
    for tenant in tenants:
        async with database.tenant(tenant) as connection:
            [before] = await list_jobs(tenant, connection, before=None, limit=2)
        await runner.run(tenant, before.id)
        async with database.tenant(tenant) as connection:
            [job] = await list_jobs(tenant, connection, before=None, limit=2)
            priority = await connection.fetchval("SELECT priority FROM memory_usage")
        if tenant == broken:
            assert (job.state, job.error, priority) == ("running", "internal error: ValidationError", 5)
        else:
            assert (job.state, job.error, priority) == ("done", None, 4)


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

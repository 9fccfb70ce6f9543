"""What is the same for jobs of every kind, tried with one that counts, over a real Postgres."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

import msgspec
import pytest
from redis.asyncio import Redis

from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import Advance, DueJob, JobRecord, ask_cancel, create_job, get_job
from memplane_core.storage.leases import take_lease
from memplane_core.storage.session import Connection, Database
from memplane_core.testing.tenants import make_tenant
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.job import Finished, JobFailed, Run, StepResult, checkpoint_of
from memplane_maintenance.sweep import Sweep

pytestmark = pytest.mark.anyio


class Memo(msgspec.Struct, frozen=True):
    """How far the count is."""

    counted: int = 0


class Counting:
    """Counts to `params["to"]`, one a step.

    Attributes:
        error: Raised by the next steps.
        pause_s: After each step.
        reached: Every number that a step began at, in order.
        abandoned: Runs that were cancelled or have failed.
        waits: What the next step waits for.
        begun: Set once a step has begun.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.pause_s = 0.0
        self.reached: list[int] = []
        self.abandoned: list[UUID] = []
        self.waits: asyncio.Event | None = None
        self.begun = asyncio.Event()

    async def step(self, run: Run) -> StepResult:
        memo = run.checkpoint(Memo)
        self.reached.append(memo.counted)
        self.begun.set()
        if self.waits is not None:
            await self.waits.wait()
        if self.error is not None:
            raise self.error
        total = int(run.record.params["to"])
        if memo.counted == total:
            return Finished({"counted": total})
        return Advance(
            checkpoint=checkpoint_of(Memo(memo.counted + 1)),
            done=memo.counted + 1,
            total=total,
            result={"counted": memo.counted + 1},
            pause_s=self.pause_s,
        )

    async def abandon(self, run: Run, connection: Connection) -> None:
        del connection
        self.abandoned.append(run.record.id)


class Bench:
    """One tenant's jobs of the kind `count`."""

    def __init__(self, database: Database, tenant: TenantId) -> None:
        self.database = database
        self.tenant = tenant
        self.job = Counting()
        self.runner = JobRunner(database, {"count": self.job})

    async def ask(self, to: int = 3, kind: str = "count") -> UUID:
        async with self.database.tenant(self.tenant) as connection:
            job = await create_job(
                self.tenant, connection, kind=kind, params={"to": to}, dry_run=False, started_by="test"
            )
        return job.id

    async def found(self, job_id: UUID) -> JobRecord:
        async with self.database.tenant(self.tenant) as connection:
            job = await get_job(self.tenant, connection, job_id)
        assert job is not None
        return job

    async def cancel(self, job_id: UUID) -> None:
        async with self.database.tenant(self.tenant) as connection:
            await ask_cancel(self.tenant, connection, job_id)

    async def pass_time(self) -> None:
        async with self.database.tenant(self.tenant) as connection:
            await connection.execute("UPDATE job SET not_before = clock_timestamp()")
            await connection.execute("UPDATE lease SET expires_at = clock_timestamp()")


@pytest.fixture
def bench(database: Database, tenant: TenantId) -> Bench:
    return Bench(database, tenant)


class TestRunning:
    async def test_steps_follow_each_other_until_it_is_done(self, bench: Bench) -> None:
        job_id = await bench.ask(to=3)
        report = await bench.runner.run(bench.tenant, job_id)
        assert (report.steps, report.ended, report.more) == (3, "done", False)
        job = await bench.found(job_id)
        assert (job.state, job.done, job.total, job.result, job.error) == ("done", 3, 3, {"counted": 3}, None)
        assert job.started_at is not None
        assert job.finished_at is not None
        assert not (await bench.runner.run(bench.tenant, job_id)).taken

    async def test_a_slice_ends_after_the_step_that_it_is_at_and_the_next_goes_on(self, bench: Bench) -> None:
        short = JobRunner(bench.database, {"count": bench.job}, slice_s=0)
        job_id = await bench.ask(to=2)
        reports = [await short.run(bench.tenant, job_id) for _ in range(3)]
        assert [(report.more, report.ended) for report in reports] == [(True, None), (True, None), (False, "done")]
        assert bench.job.reached == [0, 1, 2]

    async def test_one_that_pauses_is_left_alone_for_as_long(self, bench: Bench) -> None:
        bench.job.pause_s = 30
        job_id = await bench.ask()
        assert not (await bench.runner.run(bench.tenant, job_id)).more
        assert not (await bench.runner.run(bench.tenant, job_id)).taken
        await bench.pass_time()
        await bench.runner.run(bench.tenant, job_id)
        assert bench.job.reached == [0, 1]

    async def test_nobody_takes_a_job_that_another_works_on_and_who_lost_it_changes_nothing(self, bench: Bench) -> None:
        job_id = await bench.ask(to=1)
        bench.job.waits = asyncio.Event()
        slow = asyncio.create_task(bench.runner.run(bench.tenant, job_id))
        await bench.job.begun.wait()
        assert not (await bench.runner.run(bench.tenant, job_id)).taken
        await bench.pass_time()  # as if the worker had slept for longer than its lease
        other = Counting()
        assert (await JobRunner(bench.database, {"count": other}).run(bench.tenant, job_id)).ended == "done"
        bench.job.error = JobFailed("too late to say so")
        bench.job.waits.set()
        assert (await slow).ended is None
        assert ((await bench.found(job_id)).state, bench.job.reached, other.reached) == ("done", [0], [0, 1])

    async def test_a_kind_of_a_newer_version_waits_for_a_worker_that_knows_it(self, bench: Bench) -> None:
        job_id = await bench.ask(kind="unheard-of")
        assert not (await bench.runner.run(bench.tenant, job_id)).taken
        assert (await bench.found(job_id)).state == "queued"


class TestTrouble:
    async def test_while_a_part_is_away_it_says_so_and_waits_longer_each_time(self, bench: Bench) -> None:
        bench.job.error = IndexUnavailable("the index is away")
        job_id = await bench.ask()
        pauses: list[float] = []
        for _ in range(12):
            await bench.pass_time()
            await bench.runner.run(bench.tenant, job_id)
            async with bench.database.tenant(bench.tenant) as connection:
                pauses.append(
                    await connection.fetchval(
                        "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM job"
                    )
                )
        assert (await bench.found(job_id)).error == "the index is away"
        assert pauses[:4] == [pytest.approx(2**n, abs=0.9) for n in range(4)]
        assert pauses[-1] == pytest.approx(60, abs=0.9)
        bench.job.error = None
        await bench.pass_time()
        assert (await bench.runner.run(bench.tenant, job_id)).ended == "done"
        assert (await bench.found(job_id)).error is None

    async def test_what_can_never_be_done_has_failed_at_once(self, bench: Bench) -> None:
        bench.job.error = JobFailed("it cannot be counted")
        job_id = await bench.ask()
        assert (await bench.runner.run(bench.tenant, job_id)).ended == "failed"
        job = await bench.found(job_id)
        assert (job.state, job.error, bench.job.abandoned) == ("failed", "it cannot be counted", [job_id])

    async def test_an_error_that_nobody_foresaw_fails_it_after_some_tries_and_is_not_quoted(self, bench: Bench) -> None:
        bench.job.error = KeyError("the text of a memory")
        job_id = await bench.ask()
        for _ in range(8):
            assert (await bench.found(job_id)).state != "failed"
            await bench.pass_time()
            await bench.runner.run(bench.tenant, job_id)
        job = await bench.found(job_id)
        assert (job.state, job.error, bench.job.abandoned) == ("failed", "internal error: KeyError", [job_id])


class TestCancelling:
    async def test_one_at_work_ends_before_its_next_step(self, bench: Bench) -> None:
        job_id = await bench.ask(to=100)
        bench.job.waits = asyncio.Event()
        working = asyncio.create_task(bench.runner.run(bench.tenant, job_id))
        await bench.job.begun.wait()
        await bench.cancel(job_id)
        assert (await bench.found(job_id)).state == "running"
        bench.job.waits.set()
        assert (await working).ended == "cancelled"
        job = await bench.found(job_id)
        assert (job.state, job.done, bench.job.reached, bench.job.abandoned) == ("cancelled", 1, [0], [job_id])


class TestFinding:
    @pytest.fixture
    async def sweep(self, database: Database, valkey: ValkeyServer) -> AsyncGenerator[Sweep]:
        client: Redis = Redis.from_url(valkey.url, protocol=3)
        yield Sweep(database, client, at_once=10_000)  # other tests leave work behind
        await client.aclose()

    async def test_the_sweep_finds_what_nobody_works_on(self, bench: Bench, sweep: Sweep) -> None:
        job_id = await bench.ask()
        mine = DueJob(bench.tenant, job_id)
        assert mine in (await sweep.run()).jobs
        await take_lease(bench.tenant, bench.database, name="job:count", owner="a worker", ttl_s=30)
        assert mine not in (await sweep.run()).jobs
        await bench.pass_time()  # it died
        assert mine in (await sweep.run()).jobs
        await bench.runner.run(bench.tenant, job_id)
        assert mine not in (await sweep.run()).jobs

    async def test_a_job_is_found_of_whatever_tenant_and_run_by_nobody_elses(
        self, bench: Bench, database: Database, sweep: Sweep
    ) -> None:
        other = Bench(database, await make_tenant(database))
        job_id = await other.ask()
        assert DueJob(other.tenant, job_id) in (await sweep.run()).jobs
        assert not (await bench.runner.run(bench.tenant, job_id)).taken
        assert (await other.found(job_id)).state == "queued"

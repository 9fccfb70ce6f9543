"""Works on one job for a slice, from taking its lease to giving it back. Knows nothing of Celery, nor of any kind."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.background import beside
from memplane_core.domain.errors import ErasureUnderWay, IndexMismatch, Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage.jobs import Advance, Ending, JobRecord, claim_job, end_job, get_job, save_job
from memplane_core.storage.leases import Lease, release_lease, renew_lease, take_lease
from memplane_core.storage.session import Connection, Database, is_contention
from memplane_maintenance import metrics
from memplane_maintenance.errors import origin
from memplane_maintenance.jobs.job import CancelAsked, Finished, Job, JobFailed, Run, RunLost, Saved, StepResult

log = get_logger(__name__)

_TRIES: Final = 8
"""After this many errors in a row that nobody foresaw a job has failed."""


class RunReport(msgspec.Struct, kw_only=True):
    """What a slice did.

    Attributes:
        taken: False where another works on the job, or it has ended, or its time has not come.
        steps: That got it on.
        ended: How it ended, if it did.
        more: It can go on right now.
    """

    taken: bool = True
    steps: int = 0
    ended: Ending | None = None
    more: bool = False


class JobRunner:
    """Runs jobs of all kinds.

    It may be stopped at any line: whoever takes the job next goes on at its last checkpoint.

    Args:
        database: Where jobs are.
        jobs: Every kind there is.
        lease_s: For how long a job is taken at a time.
        slice_s: After this long no new step is begun.
        stopping: Whether the process is to end.
    """

    def __init__(
        self,
        database: Database,
        jobs: Mapping[str, Job],
        *,
        lease_s: float = 30.0,
        slice_s: float = 10.0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._lease_s = lease_s
        self._slice_s = slice_s
        self._stopping = stopping

    async def run(self, tenant: TenantId, job_id: UUID) -> RunReport:
        """Work on a job for a slice.

        Raises:
            Unavailable: Postgres is away.
        """
        async with self._database.tenant(tenant) as connection:
            found = await get_job(tenant, connection, job_id)
        job = self._jobs.get(found.kind) if found else None
        if found is None or job is None:
            return RunReport(taken=False)
        lease = await take_lease(
            tenant, self._database, name=f"job:{found.kind}", owner=uuid.uuid4().hex, ttl_s=self._lease_s
        )
        if lease is None:
            return RunReport(taken=False)
        try:
            async with self._database.tenant(tenant) as connection:
                record = await claim_job(tenant, connection, job_id, epoch=lease.epoch)
            if record is None:
                return RunReport(taken=False)
            async with self._renewed(tenant, lease):
                return await self._slice(job, tenant, record)
        finally:
            with contextlib.suppress(Unavailable):
                await release_lease(tenant, self._database, lease)

    async def _slice(self, job: Job, tenant: TenantId, record: JobRecord) -> RunReport:
        report = RunReport()
        ends_at = time.monotonic() + self._slice_s
        while True:
            run = Run(tenant, record)
            try:
                done = await self._step(job, run, report)
                saved = await self._save(run, done)
            except RunLost:
                return report
            if saved is None:
                return report
            record = saved
            if isinstance(done, Advance) and (done.held_up_by or done.pause_s):
                return report
            report.steps += 1
            if self._stopping() or time.monotonic() >= ends_at:
                report.more = True
                return report

    async def _save(self, run: Run, done: Advance | Saved | None) -> JobRecord | None:
        """The run as it is after a step; None where it has ended, or is another's."""
        if not isinstance(done, Advance):
            return done and done.record
        async with self._database.tenant(run.tenant) as connection:
            return await save_job(run.tenant, connection, run.record.id, epoch=run.record.epoch, advance=done)

    async def _step(self, job: Job, run: Run, report: RunReport) -> Advance | Saved | None:
        """One step, or the end of the run; None where nothing is left to be saved."""
        if run.record.cancel_asked:
            return await self._abandon(job, run, report, state="cancelled", error=None)
        try:
            return await self._done(run, report, await self._timed(job, run))
        except CancelAsked:
            return _held(run.record, None)  # seen before the next step
        except JobFailed as error:
            return await self._abandon(job, run, report, state="failed", error=str(error))
        except RunLost:
            raise
        except Exception as error:  # noqa: BLE001 - one job's trouble must not become every worker's
            return await self._hindered(job, run, report, error=error)

    async def _timed(self, job: Job, run: Run) -> StepResult:
        began = time.monotonic()
        result = await job.step(run)
        metrics.JOB_STEP_SECONDS.labels(run.record.kind).observe(time.monotonic() - began)
        return result

    async def _done(self, run: Run, report: RunReport, result: StepResult) -> Advance | Saved | None:
        if isinstance(result, Advance | Saved):
            return result
        if isinstance(result, Finished):
            async with self._database.tenant(run.tenant) as connection:
                await _end(run, connection, state="done", result=result.result, error=None)
        self._ended(run, report, "done")
        return None

    async def _hindered(self, job: Job, run: Run, report: RunReport, *, error: Exception) -> Advance | None:
        """Try again later, but not for ever what nobody foresaw."""
        record, name = run.record, type(error).__name__
        if isinstance(error, IndexMismatch):  # which no retry mends; it says what does
            return await self._abandon(job, run, report, state="failed", error=error.detail[:500])
        if isinstance(error, Unavailable | ErasureUnderWay | TimeoutError):
            log.warning("job_held_up", tenant=str(run.tenant), kind=record.kind, error=name)
            metrics.JOBS_HELD_UP.labels(record.kind, name).inc()
            return _held(record, (str(error) or "it took too long")[:500])
        if is_contention(error):
            return _held(record, "others were in the way")
        # Without the message, which may quote a memory.
        log.error("job_step_failed", tenant=str(run.tenant), kind=record.kind, error=name, where=origin(error))
        metrics.JOBS_HELD_UP.labels(record.kind, "internal").inc()
        reason = f"internal error: {name}"
        if record.attempts + 1 < _TRIES:
            return _held(record, reason)
        return await self._abandon(job, run, report, state="failed", error=reason)

    async def _abandon(
        self, job: Job, run: Run, report: RunReport, *, state: Ending, error: str | None
    ) -> Advance | None:
        try:
            async with self._database.tenant(run.tenant) as connection:
                await job.abandon(run, connection)
                await _end(run, connection, state=state, result=run.record.result, error=error)
        except Exception as problem:
            if not is_contention(problem):
                raise
            return _held(run.record, "others were in the way")
        self._ended(run, report, state)
        return None

    def _ended(self, run: Run, report: RunReport, state: Ending) -> None:
        report.ended = state
        metrics.JOBS_ENDED.labels(run.record.kind, state).inc()
        took = datetime.now(UTC) - run.record.created_at
        metrics.JOB_SECONDS.labels(run.record.kind, state).observe(max(took.total_seconds(), 0))
        log.info("job_ended", tenant=str(run.tenant), kind=run.record.kind, job=str(run.record.id), state=state)

    @asynccontextmanager
    async def _renewed(self, tenant: TenantId, lease: Lease) -> AsyncGenerator[None]:
        """Hold the lease for as long as the context lasts, however long a step takes."""

        async def renew() -> None:
            held: Lease | None = lease
            while held is not None:
                await asyncio.sleep(self._lease_s / 3)
                with contextlib.suppress(Unavailable):  # whether it still was ours shows when the step is saved
                    held = await renew_lease(tenant, self._database, held, ttl_s=self._lease_s)

        async with beside(renew(), name="renew a job's lease"):
            yield


async def _end(run: Run, connection: Connection, *, state: Ending, result: dict[str, int], error: str | None) -> None:
    """End the run. Raises RunLost, so that nothing of the transaction stays, where it is another's by now."""
    record = run.record
    if not await end_job(
        run.tenant, connection, record.id, epoch=record.epoch, state=state, result=result, error=error
    ):
        raise RunLost


def _held(record: JobRecord, reason: str | None) -> Advance:
    """As far as it was."""
    return Advance(
        checkpoint=record.checkpoint, done=record.done, total=record.total, result=record.result, held_up_by=reason
    )

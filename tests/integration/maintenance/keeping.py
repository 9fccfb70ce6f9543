"""A tenant whose memories are kept in order, by a clock that tests set."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from memplane_core.contracts.maintenance_runs import MaintenanceKind, params_of
from memplane_core.contracts.policy import MaintenancePolicy
from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import memories
from memplane_core.storage.jobs import JobRecord, create_job, get_job
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.usage import record_access
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.jobs import Job, JobRunner, RunReport
from memplane_maintenance.jobs.batches import BatchJob
from memplane_maintenance.jobs.priorities import Priorities
from memplane_maintenance.jobs.prune import Prune
from memplane_maintenance.jobs.purge import Expire, Purge

JOBS: Final[dict[MaintenanceKind, type[BatchJob]]] = {
    "priorities": Priorities,
    "prune": Prune,
    "expire": Expire,
    "purge": Purge,
}


class Keeping:
    """Runs jobs at a moment of the test's choice, from `size` memories to the next.

    Attributes:
        now: What the clock says: years ago at first, since nothing is recalled in the future.
    """

    def __init__(self, desk: MemoryDesk, *, size: int | None = None) -> None:
        self.desk = desk
        self.database = desk.database
        self.tenant: TenantId = desk.tenant
        self.now = datetime.now(UTC) - timedelta(days=1_200)
        self._size = size

    async def clock(self, connection: Connection) -> datetime:
        """The time."""
        del connection
        return self.now

    def worker(self, database: Database | None = None, *, slice_s: float = 30.0) -> JobRunner:
        """What a worker process runs jobs with; at `slice_s` 0 one batch a slice."""
        seen = database or self.database
        jobs: dict[str, Job] = {kind: job(seen, clock=self.clock, size=self._size) for kind, job in JOBS.items()}
        return JobRunner(seen, jobs, slice_s=slice_s)

    async def ask(
        self,
        kind: MaintenanceKind,
        *,
        dry_run: bool = False,
        policy: MaintenancePolicy | None = None,
        as_of: datetime | None = None,
    ) -> UUID:
        """Queue a run by a policy."""
        params = params_of(kind, policy or MaintenancePolicy())
        params |= {"as_of": as_of.isoformat()} if as_of else {}
        async with self.database.tenant(self.tenant) as connection:
            job = await create_job(
                self.tenant, connection, kind=kind, params=params, dry_run=dry_run, started_by="tester"
            )
        return job.id

    async def slice(self, job_id: UUID, worker: JobRunner | None = None) -> RunReport:
        """A slice of it, as if its time had come and nobody had it."""
        async with self.database.tenant(self.tenant) as connection:
            await connection.execute("UPDATE job SET not_before = clock_timestamp()")
            await connection.execute("UPDATE lease SET expires_at = clock_timestamp()")
        return await (worker or self.worker()).run(self.tenant, job_id)

    async def run(self, kind: MaintenanceKind, **asked: Any) -> JobRecord:
        """A whole run, which must succeed."""
        job_id = await self.ask(kind, **asked)
        while not (await self.slice(job_id)).ended:
            pass
        job = await self.job(job_id)
        assert (job.state, job.error) == ("done", None)
        return job

    async def job(self, job_id: UUID) -> JobRecord:
        """A run as it is."""
        async with self.database.tenant(self.tenant) as connection:
            found = await get_job(self.tenant, connection, job_id)
        assert found is not None
        return found

    async def write(self, *texts: str, **fields: Any) -> list[UUID]:
        """Memories that were written just now, by the clock."""
        ids: list[UUID] = []
        for start in range(0, len(texts), 500):
            ids += await self.desk.write(*texts[start : start + 500], embedded=False, **fields)
        await self.sql("UPDATE memory SET created_at = $2, updated_at = $2 WHERE id = ANY($1)", ids, self.now)
        await self.sql("UPDATE memory_usage SET last_accessed_at = $2 WHERE memory_id = ANY($1)", ids, self.now)
        return ids

    async def use(self, ids: Sequence[UUID]) -> None:
        """Recall memories now, by the clock."""
        async with self.database.tenant(self.tenant) as connection:
            await record_access(self.tenant, connection, {memory_id: [self.now.timestamp()] for memory_id in ids})

    def pass_time(self, **by: float) -> None:
        """Set the clock forward."""
        self.now += timedelta(**by)

    async def sql(self, query: str, *args: object) -> None:
        """Change the tenant's rows behind everybody's back."""
        async with self.database.tenant(self.tenant) as connection:
            await connection.execute(query, *args)

    async def read(self, ids: Sequence[UUID]) -> list[Memory | None]:
        """Memories as they are; None for what is gone."""
        async with self.database.tenant(self.tenant) as connection:
            found = await memories.read(self.tenant, connection, ids, also_expired=True)
        return [found.get(memory_id) for memory_id in ids]

    async def priorities(self, ids: Sequence[UUID]) -> list[int]:
        """Their priorities."""
        return [memory.priority for memory in await self.read(ids) if memory]

    async def hidden(self) -> set[UUID]:
        """All that is forgotten."""
        return {memory_id for memory_id, state, _ in await self.everything() if state == "forgotten"}

    async def everything(self) -> list[tuple[UUID, str, int]]:
        """Every memory there is with its state and version, by id."""
        async with self.database.tenant(self.tenant) as connection:
            rows = await connection.fetch("SELECT id, state, version FROM memory ORDER BY id")
        return [(row["id"], row["state"], row["version"]) for row in rows]

    async def rows_left(self, ids: Sequence[UUID]) -> int:
        """Rows of any table that still speak of these memories, but for removals that the index is told."""
        async with self.database.tenant(self.tenant) as connection:
            return await connection.fetchval(
                """
                SELECT (SELECT count(*) FROM memory WHERE id = ANY($1))
                     + (SELECT count(*) FROM memory_usage WHERE memory_id = ANY($1))
                     + (SELECT count(*) FROM memory_scene WHERE memory_id = ANY($1))
                     + (SELECT count(*) FROM memory_words WHERE memory_id = ANY($1))
                     + (SELECT count(*) FROM chunk WHERE memory_id = ANY($1))
                     + (SELECT count(*) FROM history WHERE memory_id = ANY($1))
                     + (SELECT count(*) FROM outbox WHERE memory_id = ANY($1) AND op = 'upsert')
                """,
                list(ids),
            )

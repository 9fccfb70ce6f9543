"""A tenant whose index can be spoilt, and reconciles of it, step by step."""

from uuid import UUID

import msgspec

from memplane_core.domain.index import IndexKey
from memplane_core.domain.ports import VectorIndex
from memplane_core.storage.jobs import JobRecord, create_job, get_job
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.rows import index_row, unit_vectors
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.jobs import JobRunner, RunReport, all_jobs

NONE = dict.fromkeys(("missing", "unqueued", "wordless", "stale", "lost", "requeued", "removed"), 0)


class Reconciling:
    """A tenant, its index, and a worker."""

    def __init__(self, desk: MemoryDesk, index: VectorIndex, embedder: HashEmbedder) -> None:
        self.desk = desk
        self.index = index
        self.drainer = Drainer(desk.database, index, embedder, limits=DrainLimits(fresh_s=0.0))
        self.runner = JobRunner(desk.database, all_jobs(desk.database, index, self.drainer.drain))

    async def ask(self, *, dry_run: bool = False) -> UUID:
        """Queue a run."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            job = await create_job(
                self.desk.tenant, connection, kind="reconcile", params={}, dry_run=dry_run, started_by="test"
            )
        return job.id

    async def slice(self, job_id: UUID, runner: JobRunner | None = None) -> RunReport:
        """One slice of it, as if its time had come."""
        await self.desk.pass_time()
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            await connection.execute("UPDATE job SET not_before = clock_timestamp()")
        return await (runner or self.runner).run(self.desk.tenant, job_id)

    async def finish(self, job_id: UUID) -> JobRecord:
        """Slices until it has ended."""
        for _ in range(20):
            if (await self.slice(job_id)).ended:
                break
        job = await self.job(job_id)
        assert job.state == "done", job
        return job

    async def job(self, job_id: UUID) -> JobRecord:
        """The run as it is."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            job = await get_job(self.desk.tenant, connection, job_id)
        assert job is not None
        return job

    async def run(self, *, dry_run: bool = False) -> dict[str, int]:
        """A whole run; what it counted, without how much it looked at."""
        result = (await self.finish(await self.ask(dry_run=dry_run))).result
        return {name: count for name, count in result.items() if name != "checked"}

    async def settle(self) -> None:
        """Drain until nothing is left to do."""
        for _ in range(20):
            await self.desk.pass_time()
            await self.drainer.drain(self.desk.tenant)
            if all(row.done or row.error for row in await self.desk.outbox()):
                return
        raise AssertionError(await self.desk.outbox())

    async def held(self) -> set[IndexKey]:
        """What the index holds."""
        return set((await self.index.keys_after(self.desk.tenant, await self.desk.generation(), limit=16_383)).keys)

    async def put(self, *keys: IndexKey) -> None:
        """Store rows of these keys behind everybody's back."""
        vector = unit_vectors(1, 64)[0]
        rows = [msgspec.structs.replace(index_row(0, vector), key=key) for key in keys]
        await self.index.upsert(self.desk.tenant, await self.desk.generation(), rows)

    async def lose(self, *keys: IndexKey) -> None:
        """Remove rows behind everybody's back."""
        await self.index.delete(self.desk.tenant, await self.desk.generation(), keys)

    async def sql(self, statement: str, *args: object) -> None:
        """Do something to the tenant's rows that no service does."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            await connection.execute(statement, *args)

    async def is_mended(self) -> bool:
        """Whether, after a drain, the index holds exactly what it ought to."""
        await self.settle()
        return await self.held() == await self.desk.current_keys()

"""Priorities: moves each memory's one step nearer to what its use and feedback have earned."""

from memplane_core.contracts.maintenance_runs import PrioritiesParams
from memplane_core.storage.priorities import move_priorities
from memplane_core.storage.refill import count_memories
from memplane_core.storage.session import Connection
from memplane_maintenance.jobs.batches import Batch, BatchJob, Work


class Priorities(BatchJob):
    """The job of kind `priorities`. A statement a batch; it changes usage rows alone."""

    counts = ("checked", "raised", "lowered")
    usual_size = 2_000

    async def total(self, work: Work, connection: Connection) -> int:
        """All active memories."""
        return await count_memories(work.tenant, connection)

    async def batch(self, work: Work, connection: Connection) -> Batch:
        """Move the next ones."""
        page = await move_priorities(
            work.tenant,
            connection,
            rules=work.run.params(PrioritiesParams),
            as_of=work.as_of,
            after=work.after,
            limit=self._size,
            sample=work.sample,
            dry_run=work.run.record.dry_run,
        )
        return Batch(
            seen=page.seen,
            last=page.last,
            more=page.seen == self._size,
            counts={"checked": page.seen, "raised": page.raised, "lowered": page.lowered},
            touched=page.sample,
        )

"""Prune: forgets memories that are of no use, so that each can be restored until its grace ends."""

from datetime import timedelta

from memplane_core.contracts.maintenance_runs import PruneParams
from memplane_core.storage.markers import hide
from memplane_core.storage.pruning import lock_useless, useless_page
from memplane_core.storage.refill import count_memories
from memplane_core.storage.session import Connection
from memplane_maintenance.jobs.batches import Batch, BatchJob, Work


class Prune(BatchJob):
    """The job of kind `prune`."""

    counts = ("checked", "forgotten")
    usual_size = 1_000

    async def total(self, work: Work, connection: Connection) -> int:
        """All active memories."""
        return await count_memories(work.tenant, connection)

    async def batch(self, work: Work, connection: Connection) -> Batch:
        """Forget those of the next ones that the rules give up."""
        rules = work.run.params(PruneParams).rules
        page = await useless_page(
            work.tenant, connection, rules=rules, as_of=work.as_of, after=work.after, limit=self._size
        )
        useless = page.ids
        if useless and not work.run.record.dry_run:
            useless = await lock_useless(work.tenant, connection, useless, rules=rules, as_of=work.as_of)
            await hide(
                work.tenant,
                connection,
                useless,
                state="forgotten",
                purge_at=work.as_of + timedelta(days=rules.grace_days),
                author=work.author,
            )
        return Batch(
            seen=page.seen,
            last=page.last,
            more=page.seen == self._size,
            counts={"checked": page.seen, "forgotten": len(useless)},
            touched=useless[: work.sample],
        )

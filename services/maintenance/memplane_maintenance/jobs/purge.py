"""Purge and expire: delete for good what has been hidden, or expired, for long enough."""

from abc import abstractmethod
from datetime import datetime, timedelta
from uuid import UUID

from memplane_core.contracts.maintenance_runs import ExpireParams
from memplane_core.storage.pruning import Over, count_over, lock_over
from memplane_core.storage.removals import remove_memories
from memplane_core.storage.session import Connection
from memplane_maintenance.jobs.batches import Batch, BatchJob, Work


class _Deletion(BatchJob):
    """Deletes what is over, those over for longest first: what is left is what is still to be done."""

    counts = ("deleted",)
    usual_size = 500
    why: Over

    @abstractmethod
    def until(self, work: Work) -> datetime:
        """The last moment that is over."""

    async def total(self, work: Work, connection: Connection) -> int:
        """All that are over."""
        found = await count_over(work.tenant, connection, why=self.why, until=self.until(work), sample=0)
        return found.count

    async def batch(self, work: Work, connection: Connection) -> Batch:
        """Delete the next ones; in a dry run all are counted at once."""
        until = self.until(work)
        if work.run.record.dry_run:
            found = await count_over(work.tenant, connection, why=self.why, until=until, sample=work.sample)
            return _batch(found.count, found.sample, more=False)
        page = await lock_over(work.tenant, connection, why=self.why, until=until, limit=self._size)
        if page.ids:
            await remove_memories(work.tenant, connection, page.ids)
        return _batch(len(page.ids), page.ids[: work.sample], more=page.more)


def _batch(count: int, sample: list[UUID], *, more: bool) -> Batch:
    return Batch(seen=count, last=None, more=more, counts={"deleted": count}, touched=sample)


class Purge(_Deletion):
    """The job of kind `purge`."""

    why = "purge"

    def until(self, work: Work) -> datetime:
        """Their `purge_at` has passed."""
        return work.as_of


class Expire(_Deletion):
    """The job of kind `expire`."""

    why = "expire"

    def until(self, work: Work) -> datetime:
        """They expired so many days ago."""
        return work.as_of - timedelta(days=work.run.params(ExpireParams).grace_days)

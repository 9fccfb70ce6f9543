"""What the jobs that go through a tenant's memories share: batch after batch, each a transaction with its checkpoint.

A worker may die at any line: a batch is either done and written down, or not done at all. So nothing is done twice,
nothing counted twice, and nothing left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import ClassVar
from uuid import UUID

import msgspec

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import SAMPLE, Advance, end_job, save_job
from memplane_core.storage.markers import Author
from memplane_core.storage.session import Connection, Database
from memplane_maintenance.jobs.job import EndedItself, Run, RunLost, Saved, StepResult, checkpoint_of

Clock = Callable[[Connection], Awaitable[datetime]]
"""Tells the time within a transaction."""


async def database_clock(connection: Connection) -> datetime:
    """The database's own."""
    return await connection.fetchval("SELECT clock_timestamp()")


class Memo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is.

    Attributes:
        as_of: The moment that the whole run is about; None before its first batch.
        after: The memory that it has come to, where it goes by id.
    """

    as_of: datetime | None = None
    after: UUID | None = None


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs' own params have in common."""

    as_of: datetime | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to do.

    Attributes:
        as_of: The moment that it is about.
        after: Where the batch before ended.
        sample: Most ids that are wanted of it.
    """

    run: Run
    as_of: datetime
    after: UUID | None
    sample: int

    @property
    def tenant(self) -> TenantId:
        """Whose memories."""
        return self.run.tenant

    @property
    def author(self) -> Author:
        """Who does it, for the history."""
        return Author(self.run.record.started_by, str(self.run.record.id))


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is done, and not committed yet.

    Attributes:
        seen: How many memories it went through.
        last: Where it ended; None leaves that as it was.
        more: There may be another one.
        counts: What it did, in numbers.
        touched: Ids of some of the memories that it touched.
    """

    seen: int
    last: UUID | None
    more: bool
    counts: dict[str, int]
    touched: Sequence[UUID]


class BatchJob(ABC):
    """A job that does one batch a step.

    Args:
        database: Of the memories.
        clock: Tells when a run begins.
        size: Memories of a batch; what the kind takes where it is left out.
    """

    counts: ClassVar[tuple[str, ...]]
    """Names of what a result counts."""

    usual_size: ClassVar[int]

    def __init__(self, database: Database, *, clock: Clock = database_clock, size: int | None = None) -> None:
        self._database = database
        self._clock = clock
        self._size = size or self.usual_size

    @abstractmethod
    async def total(self, work: Work, connection: Connection) -> int:
        """How many memories a whole run goes through, as far as is known when it begins."""

    @abstractmethod
    async def batch(self, work: Work, connection: Connection) -> Batch:
        """Do a batch, or in a dry run only say what it would do."""

    async def step(self, run: Run) -> StepResult:
        """Do a batch and write it down."""
        async with self._database.tenant(run.tenant) as connection:
            held = await run.hold(connection)
            memo = run.checkpoint(Memo)
            as_of = memo.as_of or run.params(Params).as_of or await self._clock(connection)
            work = Work(run=run, as_of=as_of, after=memo.after, sample=SAMPLE - len(held.sample))
            total = held.total if memo.as_of else await self.total(work, connection)
            batch = await self.batch(work, connection)
            result = dict.fromkeys(self.counts, 0) | held.result
            result |= {name: result[name] + count for name, count in batch.counts.items()}
            advance = Advance(
                checkpoint=checkpoint_of(Memo(as_of=as_of, after=batch.last or memo.after)),
                done=held.done + batch.seen,
                total=max(total or 0, held.done + batch.seen),
                result=result,
                sample=[*held.sample, *batch.touched][:SAMPLE],
            )
            saved = await save_job(run.tenant, connection, run.record.id, epoch=run.record.epoch, advance=advance)
            if saved is None:
                raise RunLost
            if batch.more:
                return Saved(saved)
            await end_job(
                run.tenant, connection, run.record.id, epoch=run.record.epoch, state="done", result=advance.result
            )
            return EndedItself()

    async def abandon(self, run: Run, connection: Connection) -> None:
        """Leave what was done as it is."""
        del run, connection

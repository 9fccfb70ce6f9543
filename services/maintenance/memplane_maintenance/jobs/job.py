"""What a kind of job is to the runner, and a run to a kind of job."""

from typing import Any, Protocol, TypeVar

import msgspec

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import Advance, JobRecord, hold_job
from memplane_core.storage.session import Connection

T = TypeVar("T")


class JobFailed(Exception):
    """The job cannot be done, however often it is tried; says why, without any memory's text."""


class RunLost(Exception):
    """Another worker has this run by now, or it has ended."""


class CancelAsked(Exception):
    """Somebody wants this run to end."""


class Finished(msgspec.Struct, frozen=True):
    """All is done; `result` says what, in numbers."""

    result: dict[str, int]


class EndedItself(msgspec.Struct, frozen=True):
    """The step has ended the run in a transaction of its own, together with its last piece of work."""


class Saved(msgspec.Struct, frozen=True):
    """The step has written down how far the run is in a transaction of its own, together with its work."""

    record: JobRecord


StepResult = Advance | Saved | Finished | EndedItself


class Run(msgspec.Struct, frozen=True):
    """A run of a job, as it is before a step."""

    tenant: TenantId
    record: JobRecord

    def params(self, type_: type[T]) -> T:
        """What it works by."""
        return msgspec.convert(self.record.params, type_)

    def checkpoint(self, type_: type[T]) -> T:
        """How far it is."""
        return msgspec.convert(self.record.checkpoint, type_)

    async def hold(self, connection: Connection) -> JobRecord:
        """Lock the run until the transaction ends: what that does is done by whoever the run belongs to.

        Raises:
            RunLost: It is another's by now, or has ended.
            CancelAsked: It is to end.
        """
        held = await hold_job(self.tenant, connection, self.record.id, epoch=self.record.epoch)
        if held is None:
            raise RunLost
        if held.cancel_asked:
            raise CancelAsked
        return held


class Job(Protocol):
    """One kind of job. It may be stopped at any line and run on by another worker."""

    async def step(self, run: Run) -> StepResult:
        """Do a batch, of seconds, and say how far the job is; doing the same batch again changes nothing more.

        Raises:
            JobFailed: It can never be done.
            Unavailable: A part is away; the step is tried again later, as it is after any other error, a few times.
        """
        ...

    async def abandon(self, run: Run, connection: Connection) -> None:
        """Undo what must not stay of a run that was cancelled or has failed.

        The run ends in the same transaction.
        """
        ...


def checkpoint_of(memo: msgspec.Struct) -> dict[str, Any]:
    """A checkpoint as it is stored."""
    return msgspec.to_builtins(memo)


def advance(
    run: Run,
    memo: msgspec.Struct,
    *,
    done: int | None = None,
    total: int | None = None,
    result: dict[str, int] | None = None,
    pause_s: float = 0.0,
    held_up_by: str | None = None,
) -> Advance:
    """How far a run is after a step; what is not named is as it was before it."""
    return Advance(
        checkpoint=checkpoint_of(memo),
        done=run.record.done if done is None else done,
        total=run.record.total if total is None else total,
        result=run.record.result if result is None else result,
        pause_s=pause_s,
        held_up_by=held_up_by,
    )

"""Erases persons: all that is kept of a user, of an agent, or of what is both one's and the other's.

One run takes all of a tenant's erasures in turn. Each goes through everything twice: what is there when it begins, and,
once nothing can be under way any more that was begun before, what has come since. How far it is stands in its own row.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

from memplane_core.domain.errors import Unavailable
from memplane_core.domain.ports import VectorIndex
from memplane_core.observability.logs import get_logger
from memplane_core.storage import erasure_reach, merge_ledgers
from memplane_core.storage.erasure_reach import Erased
from memplane_core.storage.erasures import (
    ErasureRecord,
    end_run,
    fail_running,
    finish_erasure,
    next_turn,
    save_erasure,
)
from memplane_core.storage.jobs import Advance
from memplane_core.storage.session import Connection, Database, is_contention
from memplane_maintenance.jobs.erase_copies import Copies, DrainGate, IndexErasure, NoCopies
from memplane_maintenance.jobs.job import CancelAsked, EndedItself, Run, RunLost, StepResult

log = get_logger(__name__)

Phase = Literal["memories", "citing", "records", "copies"]

_BATCH: Final = 500
_STEP_S: Final = 2.0
_PASSES: Final = 2
_NEXT: Final[Mapping[str, Phase]] = {"": "memories", "memories": "citing", "citing": "records", "records": "copies"}

REMAINS: Final[Mapping[str, str]] = {
    "postgres": "ids of erased memories for a day; dead rows until a vacuum; the write-ahead log until it is recycled",
    "milvus": "removed rows in segments until they are compacted, which was asked for; removals are told once more",
    "processes": "ids of memories in remembered answers of the index for a minute; vectors of queries for ten minutes; "
    "single words that somebody wrote or asked for, until others take their places",
    "backups": "whatever was backed up before",
}
"""What a receipt says is still there physically."""


class Erase:
    """The job of kind `erase`. It takes no params: whom to erase is in the erasures' rows, and nowhere else.

    Args:
        database: Of the memories.
        index: That holds rows of them.
        copies: What caches keep.
        rpc_timeout_s: After this long a call to the index can no longer take effect.
        trusted_s: For this long a gateway may let a key in that is revoked.
        settle_s: For this long after an erasure was asked for, a write that it has refused may still be embedding its
            text, and a cache may take the vector.
    """

    def __init__(
        self,
        database: Database,
        index: VectorIndex,
        *,
        copies: Copies | None = None,
        rpc_timeout_s: float = 20.0,
        trusted_s: float = 30.0,
        settle_s: float = 6.0,
    ) -> None:
        self._database = database
        self._copies = copies or NoCopies()
        self._gate = DrainGate(database, rpc_timeout_s=rpc_timeout_s)
        self._index = IndexErasure(database, index, rpc_timeout_s=rpc_timeout_s)
        self._rpc_timeout_s = rpc_timeout_s
        self._trusted_s = trusted_s
        self._settle_s = settle_s

    async def step(self, run: Run) -> StepResult:
        """Go on with the erasure that has waited longest."""
        async with self._database.tenant(run.tenant) as connection:
            turn = await next_turn(run.tenant, connection)
        if turn.erasure is None:
            return await self._end(run) if turn.running == 0 else _advance(run, pause_s=max(0.1, turn.wait_s or 0.0))
        erasure = turn.erasure
        phase = erasure.phase or _NEXT[""]
        try:
            match phase:
                case "memories" | "citing":
                    await self._memories(run, erasure, phase=phase)
                case "records":
                    await self._records(run, erasure)
                case _:
                    await self._other_copies(run, erasure)
        except Unavailable as error:
            async with self._database.tenant(run.tenant) as connection:
                await save_erasure(run.tenant, connection, erasure, phase=phase, wait_s=2.0, error=error.detail)
        except Exception as error:
            if not isinstance(error, RunLost | CancelAsked) and not is_contention(error):
                # Behind the others: what is wrong with this one is no reason to give up those.
                reason = f"internal error: {type(error).__name__}"
                async with self._database.tenant(run.tenant) as connection:
                    await save_erasure(run.tenant, connection, erasure, phase=phase, error=reason)
            raise
        return _advance(run)

    async def abandon(self, run: Run, connection: Connection) -> None:
        """Let writers write again; the erasures have failed, and say so."""
        await fail_running(run.tenant, connection, error=run.record.error or "it could not be done")

    async def _end(self, run: Run) -> StepResult:
        async with self._database.tenant(run.tenant) as connection:
            ended = await end_run(run.tenant, connection, run.record.id, epoch=run.record.epoch)
        return EndedItself() if ended else _advance(run)

    async def _memories(self, run: Run, erasure: ErasureRecord, *, phase: str) -> None:
        """Delete batches for about 2 s: memories of the subject, or those that cite one."""
        ends_at = time.monotonic() + _STEP_S
        counts: Counter[str] = Counter()
        unsettled = False
        seen = _BATCH
        while seen and time.monotonic() < ends_at:
            async with self._database.tenant(run.tenant) as connection:
                await run.hold(connection)
                erased = await self._batch(run, connection, erasure, phase=phase)
                counts.update(erased.counts)
                unsettled |= erased.unsettled
                seen = erased.seen
                after = phase if seen else _NEXT[phase]
                await save_erasure(run.tenant, connection, erasure, phase=after, counts=counts, unsettled=unsettled)

    async def _batch(self, run: Run, connection: Connection, erasure: ErasureRecord, *, phase: str) -> Erased:
        if phase == "memories":
            return await erasure_reach.erase_memories(run.tenant, connection, erasure.id, who=erasure.who, limit=_BATCH)
        return await erasure_reach.erase_citing(run.tenant, connection, erasure.id, limit=_BATCH)

    async def _records(self, run: Run, erasure: ErasureRecord) -> None:
        """Delete what tells of the memories, or names the subject, elsewhere in Postgres."""
        tenant, who = run.tenant, erasure.who
        async with self._database.tenant(tenant) as connection:
            await run.hold(connection)
            counts = Counter(await erasure_reach.sweep_traces(tenant, connection, erasure.id))
            observed = await erasure_reach.observed_of(tenant, connection, who=who)
            counts.update(await erasure_reach.forget_subject(tenant, connection, who=who))
            counts["history_blanked"] += await erasure_reach.blank_history(tenant, connection, who=who)
            merges = await merge_ledgers.forget_erased(tenant, connection, erasure.id)
            counts["merges"] += merges.forgot
            keys = await erasure_reach.revoke_keys(
                tenant, connection, who=who, subject=erasure.subject, trusted_s=self._trusted_s
            )
            jobs = await erasure_reach.forget_jobs(tenant, connection, erasure.id, who=who)
            counts.update(keys=len(keys.ids), jobs=len(jobs.deleted))
            counts["idempotency"] += await erasure_reach.forget_repeats(
                tenant, connection, erasure.id, also=[*keys.ids, *jobs.deleted, *observed]
            )
            error = "a job that names the subject is ending" if jobs.living else None
            if merges.left:
                error = "a memory that one of the subject's was merged into is being changed"
            await save_erasure(
                tenant,
                connection,
                erasure,
                phase="records" if error else "copies",
                counts=+counts,
                # Else who holds one could write about the subject anew when all is done.
                wait_s=self._trusted_s if keys.late else 1.0 if error else 0.0,
                error="a key of the subject is revoked, and a gateway may not know it yet" if keys.late else error,
            )

    async def _other_copies(self, run: Run, erasure: ErasureRecord) -> None:
        """Remove what the index and the caches keep; then begin the second pass, or end."""
        tenant = run.tenant
        async with self._gate.closed(tenant):
            counts = Counter(await self._index.remove(tenant, erasure.who))
        counts.update(await self._copies.drop(tenant))
        if erasure.pass_ < _PASSES:
            # A call to the index that was given up before the drain was kept away may take effect yet.
            wait_s = self._rpc_timeout_s if erasure.unsettled else 0.0
            async with self._database.tenant(tenant) as connection:
                await run.hold(connection)
                await save_erasure(
                    tenant,
                    connection,
                    erasure,
                    phase="memories",
                    pass_=erasure.pass_ + 1,
                    counts=+counts,
                    wait_s=wait_s,
                    settle_s=self._settle_s,
                )
            return
        with contextlib.suppress(Unavailable):
            await self._index.compact(tenant)
        async with self._database.tenant(tenant) as connection:
            await run.hold(connection)
            await save_erasure(tenant, connection, erasure, phase="copies", counts=+counts)
            await finish_erasure(tenant, connection, erasure, remains=REMAINS)
        log.info("person_erased", tenant=str(tenant), erasure=str(erasure.id), kind=erasure.kind)


def _advance(run: Run, *, pause_s: float = 0.0) -> Advance:
    """The run itself knows no more than that it goes on."""
    record = run.record
    return Advance(
        checkpoint=record.checkpoint, done=record.done, total=record.total, result=record.result, pause_s=pause_s
    )

"""Reindex: a new generation beside the one that answers, filled from Postgres, proved complete, and then switched to.

While it is built every write is queued for both. What makes the switch safe is told at `Reindex._flip`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.job_runs import ReindexParams
from memplane_core.domain.errors import IndexMismatch, IndexUnavailable, NotFound
from memplane_core.domain.index import Generation
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import generations, refill
from memplane_core.storage.generations import GenerationLife, NewGeneration
from memplane_core.storage.jobs import Advance, end_job
from memplane_core.storage.outbox import Revision
from memplane_core.storage.session import Connection, Database
from memplane_maintenance.drain import DrainReport
from memplane_maintenance.jobs.comparison import compare
from memplane_maintenance.jobs.job import EndedItself, Finished, JobFailed, Run, StepResult, advance

_PAGE: Final = 500
_STEP_S: Final = 2.0
_LOCK_S: Final = 1.0
"""Longest wait for a lock that keeps a tenant's writes."""

_FLIP_S: Final = 2.0
"""For how long writes are kept while the last of them are embedded."""

_FEW: Final = 20
"""Texts that may wait for their vectors when the switch is tried."""

_FRESH: Final = 800
"""Rows that Postgres may have to answer for when the switch is made; searches take 1,000."""

_ROUNDS: Final = 5
_LONGEST_PAUSE_S: Final = 30.0
_NEWLY_FAILED: Final = 10
"""So many memories, or one in a hundred, may be refused that the generation before could hold."""


class Memo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a reindex is.

    Attributes:
        generation: The one to switch to.
        after: The memory that the phase has come to.
        missing: How many this round of the proof found missing in the index.
        rounds: Of the proof, so far.
        flips: Tried in vain.
    """

    phase: Literal["begin", "fill", "settle", "prove", "flip"] = "begin"
    generation: int = 0
    after: UUID | None = None
    missing: int = 0
    rounds: int = 0
    flips: int = 0


class _NotCaughtUp(Exception):
    """Writes that came last still wait for their vectors."""


class Reindex:
    """The job of kind `reindex`. Its params are a `ReindexParams`.

    Args:
        database: Of the memories.
        index: That is to hold the generation.
        drain: Works on a tenant's outbox for a slice; the index is told of nothing by any other way.
    """

    def __init__(
        self, database: Database, index: VectorIndex, drain: Callable[[TenantId], Awaitable[DrainReport]]
    ) -> None:
        self._database = database
        self._index = index
        self._drain = drain

    async def step(self, run: Run) -> StepResult:
        """Do a part of the phase that the run is in."""
        memo = run.checkpoint(Memo)
        if memo.phase == "begin":
            return await self._begin(run)
        generation = await self._target(run, memo)
        match memo.phase:
            case "fill":
                return await self._fill(run, memo)
            case "settle":
                return await self._settle(run, memo, generation)
            case "prove":
                return await self._prove(run, memo, generation)
            case "flip":
                return await self._flip(run, memo)

    async def abandon(self, run: Run, connection: Connection) -> None:
        """Drop what was built; a generation that was to be gone back to is kept for its grace again."""
        params, memo = run.params(ReindexParams), run.checkpoint(Memo)
        await generations.hold_writes(run.tenant, connection, wait_s=_LOCK_S)
        await generations.give_up(run.tenant, connection, made_by=run.record.id)
        if params.to_generation is not None and memo.generation:
            await generations.keep(run.tenant, connection, memo.generation, for_s=params.grace_s)

    async def _begin(self, run: Run) -> StepResult:
        params = run.params(ReindexParams)
        async with self._database.tenant(run.tenant) as connection:
            total = await refill.count_memories(run.tenant, connection)
            if run.record.dry_run:
                return Finished(await _forecast(run.tenant, connection, params, total=total))
            # Whoever writes from this commit on queues for the new generation too; whoever wrote before it has
            # committed, and the filling sees it.
            await generations.hold_writes(run.tenant, connection, wait_s=_LOCK_S)
            await run.hold(connection)
            if params.to_generation is None:
                new = NewGeneration(
                    model=params.model,
                    dim=params.dim,
                    index_type=params.index_type,
                    index_params=params.index_params,
                    reembed=params.reembed,
                )
                made = await generations.add_generation(run.tenant, connection, new, made_by=run.record.id)
                return advance(run, Memo(phase="fill", generation=made.number), total=total)
            life = await _life(run.tenant, connection, params.to_generation)
            if life is None or life.life != "kept":
                raise JobFailed(f"generation {params.to_generation} is not kept any more")
            if life.active:
                return Finished({"generation": params.to_generation})
            await generations.keep(run.tenant, connection, params.to_generation, for_s=None)
            return advance(run, Memo(phase="settle", generation=params.to_generation), total=total)

    async def _target(self, run: Run, memo: Memo) -> Generation:
        async with self._database.tenant(run.tenant) as connection:
            life = await _life(run.tenant, connection, memo.generation)
        if life is None or life.life not in ("building", "kept"):
            raise _dropped(memo.generation)
        return life.generation

    async def _fill(self, run: Run, memo: Memo) -> Advance:
        """Queue every active memory."""
        ends_at = time.monotonic() + _STEP_S
        after = memo.after
        while time.monotonic() < ends_at:
            async with self._database.tenant(run.tenant) as connection:
                await _still_fed(run.tenant, connection, memo.generation)
                page = await refill.queue_page(
                    run.tenant, connection, generation=memo.generation, after=after, limit=_PAGE
                )
            after = page.last
            if page.seen < _PAGE:
                return advance(run, msgspec.structs.replace(memo, phase="settle", after=None))
        return advance(run, msgspec.structs.replace(memo, after=after))

    async def _settle(self, run: Run, memo: Memo, generation: Generation) -> Advance:
        """Let the drain embed and send what is queued. Raises IndexMismatch where the index can never take it."""
        report = await self._drain(run.tenant)
        async with self._database.tenant(run.tenant) as connection:
            now = await refill.waiting(run.tenant, connection, generation=memo.generation)
        total = run.record.total or 0
        done = max(0, total - now.pending)
        if now.pending <= _FRESH and now.unembedded <= _FEW:
            return advance(run, msgspec.structs.replace(memo, phase="prove", after=None, missing=0), done=done)
        # A generation that is being left may be the one in trouble: what counts is whether this one gets on.
        if report.obstacle in ("index", "embedding", "internal") and done <= run.record.done:
            await self._check_dimension(run.tenant, generation)
            return advance(run, memo, done=done, held_up_by=_HELD_UP[report.obstacle])
        idle = not report.taken or not report.more
        return advance(run, memo, done=done, pause_s=1.0 if idle else 0.0)

    async def _check_dimension(self, tenant: TenantId, generation: Generation) -> None:
        """Raise IndexMismatch where the name of the generation is a collection that cannot be its own."""
        try:
            await self._index.check_dimension(tenant, generation)
        except IndexUnavailable as error:
            if isinstance(error, IndexMismatch):
                raise

    async def _prove(self, run: Run, memo: Memo, generation: Generation) -> Advance:
        """Compare what is settled with what the index holds; what it lacks is sent again, and all is proved anew."""
        await self._check_dimension(run.tenant, generation)
        ends_at = time.monotonic() + _STEP_S
        after, missing = memo.after, memo.missing
        while time.monotonic() < ends_at:
            async with self._database.tenant(run.tenant) as connection:
                page = await refill.expected_page(
                    run.tenant, connection, generation=memo.generation, after=after, limit=_PAGE
                )
            missing += await self._send_missing(run.tenant, generation, page)
            if len(page) < _PAGE:
                return await self._proved(run, memo, missing=missing)
            after = page[-1].memory_id
        return advance(run, msgspec.structs.replace(memo, after=after, missing=missing))

    async def _send_missing(self, tenant: TenantId, generation: Generation, page: list[refill.ExpectedMemory]) -> int:
        compared = await compare(tenant, self._index, generation, memories=page)
        if not compared.lacking:
            return 0
        missing = [Revision(memory.memory_id, memory.rev) for memory in compared.lacking]
        async with self._database.tenant(tenant) as connection:
            await _still_fed(tenant, connection, generation.number)
            return len(await refill.queue_again(tenant, connection, missing, generation=generation.number))

    async def _proved(self, run: Run, memo: Memo, *, missing: int) -> Advance:
        result = {**run.record.result, "sent_again": run.record.result.get("sent_again", 0) + missing}
        if missing:
            if memo.rounds + 1 >= _ROUNDS:
                raise JobFailed(f"the index did not keep {missing} memories that it had acknowledged")
            again = msgspec.structs.replace(memo, phase="settle", after=None, missing=0, rounds=memo.rounds + 1)
            return advance(run, again, result=result)
        async with self._database.tenant(run.tenant) as connection:
            active = await generations.active_generation(run.tenant, connection)
            refused = (await refill.waiting(run.tenant, connection, generation=memo.generation)).failed
            before = (await refill.waiting(run.tenant, connection, generation=active.number)).failed
        if refused > before + max(_NEWLY_FAILED, (run.record.total or 0) // 100):
            raise JobFailed(
                f"{refused} memories cannot be indexed that way, {before} by the generation that answers now"
            )
        result["failed"] = refused
        return advance(run, msgspec.structs.replace(memo, phase="flip", after=None), result=result)

    async def _flip(self, run: Run, memo: Memo) -> StepResult:
        """Let the generation answer searches from one commit on.

        Why no memory is missed, whatever is written meanwhile:

        * No transaction that writes memories is under way, and none begins until the commit (`hold_writes`). So every
          acknowledged write is known, and is queued for this generation or was proved to be in it.
        * What is still queued has its vectors in this generation: a search takes it from the fresh rows, as it does
          after any write. The last few texts get theirs now, while writers wait, for 2 s at most.
        * A writer that has embedded for the generation before finds, under the same lock, that another is active, and
          embeds again for that one: its memory is never without vectors in what is searched.
        * A search that began before finds all that was acknowledged before it in the old generation, which is fed and
          kept for its grace. One that ends up between the two compares the number with what the fresh rows say.
        """
        async with self._database.tenant(run.tenant) as connection:
            before = await refill.waiting(run.tenant, connection, generation=memo.generation)
        if before.unembedded > _FEW or before.fresh > _FRESH:
            return advance(run, msgspec.structs.replace(memo, phase="settle"), pause_s=1.0)
        params = run.params(ReindexParams)
        result = {**run.record.result, "generation": memo.generation, "memories": run.record.total or 0}
        try:
            async with self._database.tenant(run.tenant) as connection:
                await generations.hold_writes(run.tenant, connection, wait_s=_LOCK_S)
                await run.hold(connection)
                await self._catch_up(run.tenant, connection, memo.generation)
                if not await generations.activate(run.tenant, connection, memo.generation, grace_s=params.grace_s):
                    raise _dropped(memo.generation)
                await end_job(
                    run.tenant, connection, run.record.id, epoch=run.record.epoch, state="done", result=result
                )
        except _NotCaughtUp:
            again = msgspec.structs.replace(memo, phase="settle", flips=memo.flips + 1)
            return advance(run, again, pause_s=min(_LONGEST_PAUSE_S, 2.0 ** min(memo.flips, 10)))
        return EndedItself()

    async def _catch_up(self, tenant: TenantId, connection: Connection, number: int) -> None:
        """Return once every write has its vectors. The drain does it, in transactions of its own."""
        deadline = time.monotonic() + _FLIP_S
        while True:
            now = await refill.waiting(tenant, connection, generation=number)
            if now.unembedded == 0 and now.fresh <= _FRESH:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise _NotCaughtUp
            try:
                async with asyncio.timeout(left):
                    await self._drain(tenant)
                    await asyncio.sleep(0.02)
            except TimeoutError:
                raise _NotCaughtUp from None


_HELD_UP: Final = {
    "index": "the vector index cannot be reached",
    "embedding": "the embedding service cannot be reached, or does not serve the model",
    "internal": "the outbox cannot be worked on: see the worker's log",
}


async def _life(tenant: TenantId, connection: Connection, number: int) -> GenerationLife | None:
    lives = await generations.generation_lives(tenant, connection)
    if not lives:
        raise JobFailed("the tenant is gone")
    return next((life for life in lives if life.generation.number == number), None)


async def _still_fed(tenant: TenantId, connection: Connection, number: int) -> None:
    """Another worker may have gone on with this job, and dropped what it builds, while this one was asleep."""
    if not await generations.is_fed(tenant, connection, generation=number):
        raise _dropped(number)


def _dropped(number: int) -> JobFailed:
    return JobFailed(f"generation {number} was dropped")


async def _forecast(tenant: TenantId, connection: Connection, params: ReindexParams, *, total: int) -> dict[str, int]:
    """What a run would do."""
    try:
        active = await generations.active_generation(tenant, connection)
    except NotFound:
        raise JobFailed("the tenant is gone") from None
    if params.to_generation is not None:
        return {"memories": total, "generation": params.to_generation}
    same = (params.model, params.dim) == (active.model, active.dim) and not params.reembed
    return {"memories": total, "to_embed": 0 if same else total, "to_take_over": total if same else 0}

"""Reconcile: compares Postgres with a tenant's collections both ways, has the outbox mend them, and counts the drift.

What the drain is about to do is no drift, so a run among writes finds none. It changes nothing that a search sees:
what is sent again is answered for by Postgres until the index has it.

What is mended is counted once, whoever dies: Postgres has the count together with what was done there, and before what
is done in the index.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.errors import IndexMismatch, IndexUnavailable, Unavailable
from memplane_core.domain.index import Generation, IndexKey
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import reconcile, refill
from memplane_core.storage.generations import generation_lives, is_fed
from memplane_core.storage.jobs import Advance, save_job
from memplane_core.storage.leases import release_lease, take_lease
from memplane_core.storage.limits import recount_memories
from memplane_core.storage.outbox import Revision
from memplane_core.storage.reconcile import StaleKey
from memplane_core.storage.session import Connection, Database
from memplane_maintenance import metrics
from memplane_maintenance.drain.terms import DRAIN_LEASE
from memplane_maintenance.jobs.comparison import Comparison, compare
from memplane_maintenance.jobs.job import Finished, JobFailed, Run, RunLost, Saved, StepResult, checkpoint_of

log = get_logger(__name__)

_MEMORIES: Final = 500
_KEYS: Final = 1_000
_STEP_S: Final = 2.0
_LEASE_S: Final = 30.0
"""For how long the drain is kept away at a time, besides the time that a call to the index may take."""

_COUNTS: Final = ("checked", "missing", "unqueued", "wordless", "stale", "lost", "requeued", "removed")


class Memo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is.

    Attributes:
        phase: Words of all memories; then, for one generation after the other, its rows and its keys.
        generation: Which one; for `next`, the one before.
        after: The memory that the phase has come to.
        key: The key of the index that it has come to.
        mismatch: Why a generation before could not be compared: its collection is not its own. The run fails of it,
            once all others are compared.
        counted: Stale keys behind it, up to this one, are in the counts already, and may still have to be removed.
    """

    phase: Literal["words", "next", "rows", "keys"] = "words"
    generation: int = 0
    after: UUID | None = None
    key: str = ""
    counted: str = ""
    mismatch: str = ""


class Tally:
    """What a run has counted so far: see `contracts.job_runs.ReconcileStart`.

    In a dry run `requeued` and `removed` are what would have been.
    """

    def __init__(self, before: Mapping[str, int], *, dry_run: bool) -> None:
        self.counts = dict.fromkeys(_COUNTS, 0) | dict(before)
        self._dry_run = dry_run

    def add(self, **counts: int) -> None:
        """Count more. Drift that is being mended shows in the metric too."""
        for name, count in counts.items():
            self.counts[name] += count
            if name in metrics.DRIFTS and not self._dry_run:
                metrics.DRIFT_ROWS.labels(name).inc(count)


class Reconcile:
    """The job of kind `reconcile`. It takes no params.

    Args:
        database: Of the memories.
        index: That is compared with it.
        rpc_timeout_s: After this long a call to the index can no longer take effect.
    """

    def __init__(self, database: Database, index: VectorIndex, *, rpc_timeout_s: float = 20.0) -> None:
        self._database = database
        self._index = index
        self._rpc_timeout_s = rpc_timeout_s

    async def step(self, run: Run) -> StepResult:
        """Compare for about 2 s."""
        memo = run.checkpoint(Memo)
        tally = Tally(run.record.result, dry_run=run.record.dry_run)
        if memo.phase == "words":
            return await self._words(run, memo, tally)
        if memo.phase == "next":
            return await self._next(run, memo, tally)
        generation = next((kept for kept in await self._kept(run.tenant) if kept.number == memo.generation), None)
        if generation is None:
            return _advance(run, _after(memo), tally)
        try:
            if memo.phase == "rows":
                return await self._rows(run, memo, tally, generation)
            return await self._keys(run, memo, tally, generation)
        except IndexUnavailable:
            found = await self._mismatch(run.tenant, generation)
            if not found:
                raise
            return _advance(run, _after(memo, mismatch=found), Tally(run.record.result, dry_run=run.record.dry_run))

    async def abandon(self, run: Run, connection: Connection) -> None:
        """Leave what was mended as it is."""

    async def _kept(self, tenant: TenantId) -> list[Generation]:
        """Those that answer searches, or can again; one that is being built is proved by its reindex."""
        async with self._database.tenant(tenant) as connection:
            lives = await generation_lives(tenant, connection)
        return [life.generation for life in lives if life.life == "kept"]

    async def _next(self, run: Run, memo: Memo, tally: Tally) -> StepResult:
        """Go on to the next generation, or end."""
        following = [kept for kept in await self._kept(run.tenant) if kept.number > memo.generation]
        if not following:
            drift = {name: count for name, count in tally.counts.items() if name in metrics.DRIFTS and count}
            if drift:
                log.warning("index_drift", tenant=str(run.tenant), dry_run=run.record.dry_run, **drift)
            await self._recount(run)
            if memo.mismatch:
                raise JobFailed(memo.mismatch)
            return Finished(tally.counts)
        generation = following[0]
        if await self._is_lost(generation):
            if not run.record.dry_run and not await self._give_up(run.tenant, generation):
                return _advance(run, memo, tally, pause_s=1.0)
            tally.add(lost=1)
        elif found := await self._mismatch(run.tenant, generation):
            further = Memo(generation=generation.number, mismatch=memo.mismatch)
            return _advance(run, _after(further, mismatch=found), tally)
        return _advance(run, Memo(phase="rows", generation=generation.number, mismatch=memo.mismatch), tally)

    async def _mismatch(self, tenant: TenantId, generation: Generation) -> str:
        """What is wrong with a collection that was made for vectors of another length; empty where nothing is."""
        try:
            await self._index.check_dimension(tenant, generation)
        except IndexMismatch as error:
            return error.detail[:500]
        return ""

    async def _recount(self, run: Run) -> None:
        """See that as much is counted against the tenant's quota as is stored."""
        try:
            async with self._database.tenant(run.tenant) as connection:
                recount = await recount_memories(run.tenant, connection, mend=not run.record.dry_run)
        except Unavailable:  # too many to count in one statement, which is no reason to begin all over
            log.warning("memories_not_recounted", tenant=str(run.tenant))
            return
        if recount.stored != recount.counted:
            stored, counted = msgspec.to_builtins(recount.stored), msgspec.to_builtins(recount.counted)
            log.error("memory_count_drift", tenant=str(run.tenant), stored=stored, counted=counted)

    async def _is_lost(self, generation: Generation) -> bool:
        """Whether a collection that was made is not there any more."""
        if generation.state == "absent":
            return False
        return generation.collection not in {name.collection for name in await self._index.collections()}

    async def _give_up(self, tenant: TenantId, generation: Generation) -> bool:
        """Let the drain make a lost collection anew, which it does once all that belongs into it is queued.

        False where a drain is under way: it may be making it just now.
        """
        async with self._without_drain(tenant) as held:
            if held and await self._is_lost(generation):
                log.warning("collection_lost", tenant=str(tenant), collection=generation.collection)
                async with self._database.tenant(tenant) as connection:
                    await reconcile.mark_absent(tenant, connection, generation=generation.number)
        return held

    async def _words(self, run: Run, memo: Memo, tally: Tally) -> Advance | Saved:
        """Give memories their words that have none."""
        ends_at = time.monotonic() + _STEP_S
        after = memo.after
        while True:
            async with self._database.tenant(run.tenant) as connection:
                found = await reconcile.wordless_page(run.tenant, connection, after=after, limit=_KEYS)
                tally.add(wordless=len(found.wordless))
                if found.wordless and not run.record.dry_run:
                    await reconcile.restore_words(run.tenant, connection, found.wordless)
                    further = msgspec.structs.replace(memo, after=found.page.last)
                    return await _saved(run, connection, _advance(run, further, tally))
            after = found.page.last
            if found.page.seen < _KEYS:
                async with self._database.tenant(run.tenant) as connection:
                    memories = await refill.count_memories(run.tenant, connection)
                total = memories * len(await self._kept(run.tenant))
                return _advance(run, Memo(phase="next"), tally, total=total)
            if time.monotonic() >= ends_at:
                return _advance(run, msgspec.structs.replace(memo, after=after), tally)

    async def _rows(self, run: Run, memo: Memo, tally: Tally, generation: Generation) -> Advance | Saved:
        """Have sent again what the index ought to hold and does not."""
        ends_at = time.monotonic() + _STEP_S
        after, done = memo.after, run.record.done
        while True:
            async with self._database.tenant(run.tenant) as connection:
                page = await refill.expected_page(
                    run.tenant, connection, generation=generation.number, after=after, limit=_MEMORIES
                )
            done += len(page)
            compared = await compare(run.tenant, self._index, generation, memories=page)
            tally.add(checked=compared.checked)
            if compared.lacking:
                async with self._database.tenant(run.tenant) as connection:
                    await self._send_missing(run, connection, tally, generation=generation, compared=compared)
                    further = msgspec.structs.replace(memo, after=page[-1].memory_id)
                    return await _saved(run, connection, _advance(run, further, tally, done=done))
            if len(page) < _MEMORIES:
                further = Memo(phase="keys", generation=generation.number, mismatch=memo.mismatch)
                return _advance(run, further, tally, done=done)
            after = page[-1].memory_id
            if time.monotonic() >= ends_at:
                return _advance(run, msgspec.structs.replace(memo, after=after), tally, done=done)

    async def _send_missing(
        self, run: Run, connection: Connection, tally: Tally, *, generation: Generation, compared: Comparison
    ) -> None:
        lacking = {memory.memory_id: memory for memory in compared.lacking}
        # One that was edited meanwhile has another revision, whose rows the drain is told of.
        if run.record.dry_run:
            queued = await reconcile.still_settled(
                run.tenant, connection, list(lacking.values()), generation=generation.number
            )
        elif not await is_fed(run.tenant, connection, generation=generation.number):
            return
        else:
            again = [Revision(memory.memory_id, memory.rev) for memory in lacking.values()]
            queued = await refill.queue_again(run.tenant, connection, again, generation=generation.number)
        mended = [lacking[memory_id] for memory_id in queued]
        tally.add(
            missing=sum(len(set(memory.index_keys()) - compared.present) for memory in mended),
            unqueued=sum(not memory.whole for memory in mended),
            requeued=len(mended),
        )

    async def _keys(self, run: Run, memo: Memo, tally: Tally, generation: Generation) -> Advance:
        """Have removed what the index holds and ought not to."""
        ends_at = time.monotonic() + _STEP_S
        key = memo.key
        while True:
            page = await self._index.keys_after(run.tenant, generation, key, limit=_KEYS)
            async with self._database.tenant(run.tenant) as connection:
                stale = await reconcile.stale_keys(run.tenant, connection, page.keys, generation=generation.number)
            found = [text for its in stale if (text := str(its.key)) > memo.counted]
            tally.add(stale=len(found), removed=len(found))
            if found and not run.record.dry_run:
                return _advance(run, msgspec.structs.replace(memo, key=key, counted=max(found)), tally)
            if stale and not run.record.dry_run and not await self._remove(run.tenant, generation, stale):
                return _advance(run, msgspec.structs.replace(memo, key=key), tally, pause_s=1.0)
            tally.add(checked=len(page.keys))
            if page.until is None:
                return _advance(run, _after(memo), tally)
            key = page.until
            if time.monotonic() >= ends_at:
                return _advance(run, msgspec.structs.replace(memo, key=key), tally)

    async def _remove(self, tenant: TenantId, generation: Generation, stale: Sequence[StaleKey]) -> bool:
        """Remove keys, or have them removed; False where that has to be tried again, as a drain is under way."""
        unknown = [its.key for its in stale if its.verdict == "unknown"]
        if unknown and not await self._remove_unknown(tenant, generation, unknown):
            return False
        behind = [its.key for its in stale if its.verdict == "behind"]
        if behind:
            async with self._database.tenant(tenant) as connection:
                if await is_fed(tenant, connection, generation=generation.number):
                    await reconcile.queue_removals(tenant, connection, behind, generation=generation.number)
        return True

    async def _remove_unknown(self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]) -> bool:
        """Remove keys that a later write may take: while nobody can send it, and not by the outbox, which repeats."""
        async with self._without_drain(tenant) as held:
            if not held:
                return False
            async with self._database.tenant(tenant) as connection:
                still = await reconcile.stale_keys(tenant, connection, keys, generation=generation.number)
            if still:
                async with asyncio.timeout(self._rpc_timeout_s):
                    await self._index.delete(tenant, generation, [its.key for its in still])
        return True

    @contextlib.asynccontextmanager
    async def _without_drain(self, tenant: TenantId) -> AsyncGenerator[bool]:
        """Keep the tenant's drain away for as long as the context lasts; False where one is under way.

        After an error it is kept away until a call to the index can no longer take effect.
        """
        ttl_s = _LEASE_S + 2 * self._rpc_timeout_s
        lease = await take_lease(tenant, self._database, name=DRAIN_LEASE, owner=uuid.uuid4().hex, ttl_s=ttl_s)
        pause_s = self._rpc_timeout_s
        try:
            yield lease is not None
            pause_s = 0.0
        finally:
            if lease is not None:
                with contextlib.suppress(Unavailable):
                    await release_lease(tenant, self._database, lease, pause_s=pause_s)


def _after(memo: Memo, *, mismatch: str = "") -> Memo:
    """The next generation's turn. Of several that do not fit, the first is told of."""
    return Memo(phase="next", generation=memo.generation, mismatch=memo.mismatch or mismatch)


async def _saved(run: Run, connection: Connection, advance: Advance) -> Saved:
    """Write down how far it is together with what was done. Raises RunLost."""
    saved = await save_job(run.tenant, connection, run.record.id, epoch=run.record.epoch, advance=advance)
    if saved is None:
        raise RunLost
    return Saved(saved)


def _advance(
    run: Run, memo: Memo, tally: Tally, *, done: int | None = None, total: int | None = None, pause_s: float = 0.0
) -> Advance:
    return Advance(
        checkpoint=checkpoint_of(memo),
        done=run.record.done if done is None else done,
        total=run.record.total if total is None else total,
        result=tally.counts,
        pause_s=pause_s,
    )

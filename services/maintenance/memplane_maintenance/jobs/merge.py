"""Merge: makes one of memories that tell the same more than once.

A run looks at what was changed since the last one, plans all of its merges, and then carries them out, each cluster in
one transaction. A dry run is the same run without the last part.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.job_runs import MergeParams
from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.errors import ErasureUnderWay, NotFound
from memplane_core.domain.index import Generation
from memplane_core.domain.merging import by_rank, fitting, threshold_of
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import merge_plans, merge_reads, merges
from memplane_core.storage.generations import active_generation
from memplane_core.storage.jobs import SAMPLE, Advance, end_job, save_job
from memplane_core.storage.markers import Author
from memplane_core.storage.merge_reads import FIRST, Place
from memplane_core.storage.merges import Mergeable
from memplane_core.storage.session import Connection, Database
from memplane_maintenance.jobs.job import EndedItself, JobFailed, Run, RunLost, StepResult, checkpoint_of
from memplane_maintenance.jobs.merge_planning import Page, Planner

Profile = Callable[[str], Awaitable[ModelProfile]]
"""What is known of a model, by its name."""

_STEP_S: Final = 2.0
_SEEDS: Final = 128
_AT_A_TIME: Final = 1_000
"""Most memories that are merged in one transaction; a larger cluster takes several."""

_SURVIVORS: Final = 100
_SETTLES: Final = 10
"""How often a run waits for the index to show what was written last."""

_OVERLAP: Final = timedelta(minutes=5)
"""A writer may commit this much later than the moment that its memories bear."""

_BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)


class Memo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is.

    Attributes:
        generation: Whose vectors are compared.
        threshold: See `MergeParams`.
        since: Changes after this are looked at.
        until: And up to this.
        after: The place among them that planning has come to.
        held: When the earliest of those was changed that could not be compared yet.
        settles: How often it has waited.
    """

    phase: Literal["begin", "settle", "plan", "apply"] = "begin"
    generation: int = 0
    threshold: float = 1.0
    since: datetime = _BEGINNING
    until: datetime = _BEGINNING
    after: Place = Place(_BEGINNING, FIRST)
    held: datetime | None = None
    settles: int = 0


class Merge:
    """The job of kind `merge`. Its params are a `MergeParams`.

    Args:
        database: Of the memories.
        index: Names near ones.
        profile: Tells the span of the tenant's model, where the params have no threshold.
    """

    def __init__(self, database: Database, index: VectorIndex, *, profile: Profile | None = None) -> None:
        self._database = database
        self._planner = Planner(database, index)
        self._profile = profile

    async def step(self, run: Run) -> StepResult:
        """Do a part of the phase that the run is in."""
        memo = run.checkpoint(Memo)
        match memo.phase:
            case "begin":
                return await self._begin(run)
            case "settle":
                return await self._settle(run, memo)
            case "plan":
                return await self._plan(run, memo)
            case "apply":
                return await self._apply(run, memo)

    async def abandon(self, run: Run, connection: Connection) -> None:
        """Drop the plan. What was merged stays so."""
        await merge_plans.forget_plan(run.tenant, connection, job_id=run.record.id)

    async def _begin(self, run: Run) -> Advance:
        params = run.params(MergeParams)
        generation = await self._active(run.tenant)
        threshold = params.threshold
        if threshold is None:
            threshold = await self._threshold(generation.model)
        async with self._database.tenant(run.tenant) as connection:
            until = await merge_reads.now(run.tenant, connection)
            seen = None
            if not params.full:
                terms = _terms(params, threshold)
                seen = await merge_plans.seen(run.tenant, connection, generation=generation.number, terms=terms)
            since = seen or _BEGINNING
            total = await merge_reads.count_seeds(run.tenant, connection, after=since, until=until)
        memo = Memo(
            phase="settle",
            generation=generation.number,
            threshold=threshold,
            since=since,
            until=until,
            after=Place(since, FIRST),
        )
        result = {"looked_at": 0, "waiting": 0, "clusters": 0, "merged": 0}
        return Advance(checkpoint=checkpoint_of(memo), done=0, total=total, result=result)

    async def _threshold(self, model: str) -> float:
        if self._profile is None:
            raise JobFailed("nobody can tell the threshold of the tenant's model: name one")
        return threshold_of((await self._profile(model)).span)

    async def _active(self, tenant: TenantId) -> Generation:
        try:
            async with self._database.tenant(tenant) as connection:
                return await active_generation(tenant, connection)
        except NotFound:
            raise JobFailed("the tenant is gone") from None

    async def _settle(self, run: Run, memo: Memo) -> Advance:
        """Let the index be told of what was written last, for a while; what it was not is left to the next run."""
        async with self._database.tenant(run.tenant) as connection:
            behind = await merge_reads.unsettled(run.tenant, connection, generation=memo.generation, until=memo.until)
        if behind and memo.settles < _SETTLES:
            return _advance(run, msgspec.structs.replace(memo, settles=memo.settles + 1), pause_s=1.0)
        return _advance(run, msgspec.structs.replace(memo, phase="plan"))

    async def _plan(self, run: Run, memo: Memo) -> Advance:
        generation = await self._active(run.tenant)
        if generation.number != memo.generation:
            raise JobFailed("the tenant has moved to another generation meanwhile: start it anew")
        page = Page(
            job_id=run.record.id,
            generation=generation,
            threshold=memo.threshold,
            guard=run.params(MergeParams).guard,
        )
        done, result = run.record.done, dict(run.record.result)
        whole = await self._planner.whole(run.tenant, generation, looked_at=(run.record.total or 0) - done)
        ends_at = time.monotonic() + _STEP_S
        while True:
            async with self._database.tenant(run.tenant) as connection:
                seeds = await merge_reads.seeds(
                    run.tenant,
                    connection,
                    job_id=run.record.id,
                    generation=memo.generation,
                    after=memo.after,
                    until=memo.until,
                    limit=_SEEDS,
                )
            if seeds:
                clusters = await self._planner.plan(run.tenant, page, seeds, whole=whole)
                async with self._database.tenant(run.tenant) as connection:
                    await run.hold(connection)
                    for cluster in clusters:
                        await merge_plans.plan(
                            run.tenant, connection, job_id=run.record.id, survivor=cluster.survivor, revs=cluster.revs
                        )
                waiting = [seed.place.at for seed in seeds if seed.waits]
                held = min([*waiting, *([memo.held] if memo.held else [])], default=None)
                memo = msgspec.structs.replace(memo, after=seeds[-1].place, held=held)
                done += len(seeds)
                result["looked_at"] += len(seeds)
                result["waiting"] += len(waiting)
            if len(seeds) < _SEEDS:
                return await self._planned(run, memo, done=done, result=result)
            if time.monotonic() >= ends_at:
                return _advance(run, memo, done=done, result=result)

    async def _planned(self, run: Run, memo: Memo, *, done: int, result: dict[str, int]) -> Advance:
        memo = msgspec.structs.replace(memo, phase="apply")
        async with self._database.tenant(run.tenant) as connection:
            size = await merge_plans.plan_size(run.tenant, connection, job_id=run.record.id)
            sample = await merge_plans.plan_sample(run.tenant, connection, job_id=run.record.id, clusters=SAMPLE // 2)
        if run.record.dry_run:
            result |= {"clusters": size.clusters, "merged": size.merged}
        advance = _advance(run, memo, done=done, total=done + size.merged, result=result)
        return msgspec.structs.replace(advance, sample=sample)

    async def _apply(self, run: Run, memo: Memo) -> StepResult:
        """Merge cluster after cluster. Its counts are written down with each."""
        if run.record.dry_run:
            return await self._end(run, memo, result=run.record.result)
        ends_at = time.monotonic() + _STEP_S
        saved = _advance(run, memo)
        while True:
            async with self._database.tenant(run.tenant) as connection:
                survivors = await merge_plans.survivors(run.tenant, connection, job_id=run.record.id, limit=_SURVIVORS)
            if not survivors:
                return await self._end(run, memo, result=dict(saved.result))
            for survivor in survivors:
                saved = await self._merge(run, survivor, saved)
                if time.monotonic() >= ends_at:
                    return saved

    async def _merge(self, run: Run, survivor: UUID, before: Advance) -> Advance:
        try:
            async with self._database.tenant(run.tenant) as connection:
                await run.hold(connection)
                return await self._merge_one(run, connection, survivor, before)
        except ErasureUnderWay:  # soon there is nothing left of it to merge
            async with self._database.tenant(run.tenant) as connection:
                await run.hold(connection)
                gone = await merge_plans.planned_for(
                    run.tenant, connection, job_id=run.record.id, survivor=survivor, limit=2**31 - 1
                )
                await merge_plans.done_with(run.tenant, connection, [survivor, *gone], job_id=run.record.id)
            return before

    async def _merge_one(self, run: Run, connection: Connection, survivor: UUID, before: Advance) -> Advance:
        """A cluster, or a portion of a large one, as far as it still is what was compared."""
        tenant, job_id = run.tenant, run.record.id
        revs = await merge_plans.planned_for(tenant, connection, job_id=job_id, survivor=survivor, limit=_AT_A_TIME + 1)
        last = len(revs) <= _AT_A_TIME
        revs = dict(list(revs.items())[:_AT_A_TIME])
        own = await merge_plans.planned_rev(tenant, connection, survivor, job_id=job_id)
        whole = {**revs, survivor: own}
        locked = await merges.lock(tenant, connection, whole)
        as_compared = [its for its in locked.values() if its.alive and its.rev == whole[its.id]]
        together = _fitting(survivor, as_compared)
        if len(together) > 1:
            stays, *others = together
            grace = timedelta(days=run.params(MergeParams).grace_days)
            await merges.merge(
                tenant,
                connection,
                stays,
                others,
                purge_at=await merge_reads.now(tenant, connection) + grace,
                author=Author(run.record.started_by, str(job_id)),
                fixed=stays.candidate.pinned,
            )
        await merge_plans.done_with(tenant, connection, [*revs, survivor] if last else list(revs), job_id=job_id)
        result = dict(before.result)
        result["merged"] += max(len(together) - 1, 0)
        result["clusters"] += last and len(together) > 1
        advance = msgspec.structs.replace(before, result=result, done=before.done + len(revs))
        if await save_job(tenant, connection, job_id, epoch=run.record.epoch, advance=advance) is None:
            raise RunLost
        return advance

    async def _end(self, run: Run, memo: Memo, *, result: Mapping[str, int]) -> EndedItself:
        """The run ends, and the next one begins where it has come to, in one transaction."""
        params = run.params(MergeParams)
        async with self._database.tenant(run.tenant) as connection:
            await run.hold(connection)
            await merge_plans.forget_plan(run.tenant, connection, job_id=run.record.id)
            if not run.record.dry_run:
                until = min(memo.until, memo.held or memo.until)
                await merge_plans.mark_seen(
                    run.tenant,
                    connection,
                    generation=memo.generation,
                    terms=_terms(params, memo.threshold),
                    until=max(memo.since, until - _OVERLAP),
                )
            await end_job(run.tenant, connection, run.record.id, epoch=run.record.epoch, state="done", result=result)
        return EndedItself()


def _fitting(survivor: UUID, found: Sequence[Mergeable]) -> list[Mergeable]:
    """The one that stays first, and as many as it can stand for: what was planned may have been changed since."""
    if not found:
        return []
    by_id = {its.id: its for its in found}
    ranked = by_rank(its.candidate for its in found)
    if survivor in by_id:
        ranked = [by_id[survivor].candidate, *(its for its in ranked if its.id != survivor)]
    return [by_id[its.id] for its in fitting(ranked)]


def _terms(params: MergeParams, threshold: float) -> dict[str, object]:
    """What a comparison depends on."""
    return {"threshold": threshold, "guard": params.guard}


def _advance(
    run: Run,
    memo: Memo,
    *,
    done: int | None = None,
    total: int | None = None,
    result: dict[str, int] | None = None,
    pause_s: float = 0.0,
) -> Advance:
    return Advance(
        checkpoint=checkpoint_of(memo),
        done=run.record.done if done is None else done,
        total=run.record.total if total is None else total,
        result=run.record.result if result is None else result,
        pause_s=pause_s,
    )

"""Merge: makes one of memories that tell the same more than once.

A run looks at what was changed since the last one, plans all of its merges, and then carries them out, each cluster in
one transaction. A dry run is the same run without the last part.
"""

import itertools
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
from memplane_core.storage.merge_plans import Planned
from memplane_core.storage.merge_reads import FIRST, Place
from memplane_core.storage.merges import Joining, Mergeable
from memplane_core.storage.session import Connection, Database
from memplane_maintenance.jobs.job import EndedItself, JobFailed, Run, RunLost, StepResult, advance, checkpoint_of
from memplane_maintenance.jobs.merge_planning import Page, Planner

Profile = Callable[[str], Awaitable[ModelProfile]]
"""What is known of a model, by its name."""

_STEP_S: Final = 2.0
_SEEDS: Final = 128
_AT_A_TIME: Final = 1_000
"""Most memories that are merged in one transaction; a larger cluster takes several."""

_TOGETHER: Final = 300
"""Memories of small clusters that are merged in one transaction."""

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
            return advance(run, msgspec.structs.replace(memo, settles=memo.settles + 1), pause_s=1.0)
        return advance(run, msgspec.structs.replace(memo, phase="plan"))

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
                planned = await self._planner.plan(run.tenant, page, seeds, whole=whole)
                if planned:
                    async with self._database.tenant(run.tenant) as connection:
                        await run.hold(connection)
                        await merge_plans.plan(run.tenant, connection, planned, job_id=run.record.id)
                waiting = [seed.place.at for seed in seeds if seed.waits]
                held = min([*waiting, *([memo.held] if memo.held else [])], default=None)
                memo = msgspec.structs.replace(memo, after=seeds[-1].place, held=held)
                done += len(seeds)
                result["looked_at"] += len(seeds)
                result["waiting"] += len(waiting)
            if len(seeds) < _SEEDS:
                return await self._planned(run, memo, done=done, result=result)
            if time.monotonic() >= ends_at:
                return advance(run, memo, done=done, result=result)

    async def _planned(self, run: Run, memo: Memo, *, done: int, result: dict[str, int]) -> Advance:
        memo = msgspec.structs.replace(memo, phase="apply")
        async with self._database.tenant(run.tenant) as connection:
            size = await merge_plans.plan_size(run.tenant, connection, job_id=run.record.id)
            sample = await merge_plans.plan_sample(run.tenant, connection, job_id=run.record.id, clusters=SAMPLE // 2)
        if run.record.dry_run:
            result |= {"clusters": size.clusters, "merged": size.merged}
        planned = advance(run, memo, done=done, total=done + size.merged, result=result)
        return msgspec.structs.replace(planned, sample=sample)

    async def _apply(self, run: Run, memo: Memo) -> StepResult:
        """Merge cluster after cluster. Its counts are written down with each."""
        if run.record.dry_run:
            return await self._end(run, memo, result=run.record.result)
        ends_at = time.monotonic() + _STEP_S
        saved = advance(run, memo)
        while True:
            merged = await self._merge_some(run, saved)
            if merged is None:
                return await self._end(run, memo, result=saved.result)
            saved = merged
            if time.monotonic() >= ends_at:
                return saved

    async def _merge_some(self, run: Run, before: Advance) -> Advance | None:
        """Carry out the next clusters of the plan; None where there are none left."""
        for most in (_TOGETHER, 1):
            try:
                return await self._merge_up_to(run, before, most=most)
            except ErasureUnderWay:
                continue  # of one of them: each by itself, then
        async with self._database.tenant(run.tenant) as connection:
            await run.hold(connection)
            [first] = await merge_plans.next_planned(run.tenant, connection, job_id=run.record.id, limit=1)
            await merge_plans.forget_cluster(run.tenant, connection, first.survivor_id, job_id=run.record.id)
        return before  # soon there is nothing left of that one to merge

    async def _merge_up_to(self, run: Run, before: Advance, *, most: int) -> Advance | None:
        """Clusters of `most` memories in all, and at least one, in one transaction with what they count for."""
        tenant, job_id = run.tenant, run.record.id
        async with self._database.tenant(tenant) as connection:
            await run.hold(connection)
            found = await merge_plans.next_planned(tenant, connection, job_id=job_id, limit=_AT_A_TIME + 1)
            portions = _portions(found, most=most)
            if not portions:
                return None
            revs = {its.memory_id: its.rev for portion in portions for its in portion.planned}
            for portion in portions:
                if portion.survivor not in revs:  # of a cluster in portions, and not among these
                    own = await merge_plans.planned_rev(tenant, connection, portion.survivor, job_id=job_id)
                    revs[portion.survivor] = own or 0
            locked = await merges.lock(tenant, connection, revs)
            as_compared = {its.id: its for its in locked.values() if its.alive and its.rev == revs[its.id]}
            joinings = [joining for portion in portions if (joining := _joining(portion, as_compared))]
            if joinings:
                grace = timedelta(days=run.params(MergeParams).grace_days)
                purge_at = await merge_reads.now(tenant, connection) + grace
                author = Author(run.record.started_by, str(job_id))
                await merges.merge(tenant, connection, joinings, purge_at=purge_at, author=author)
            gone = [its.memory_id for portion in portions for its in portion.planned]
            kept = {portion.survivor for portion in portions if not portion.last}
            await merge_plans.done_with(tenant, connection, set(gone) - kept, job_id=job_id)
            advance = _counted(before, joinings, portions)
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


class _Portion(msgspec.Struct, frozen=True):
    """A cluster of the plan, or a part of a large one; `last` where nothing of it is left then."""

    survivor: UUID
    planned: list[Planned]
    last: bool


def _portions(found: Sequence[Planned], *, most: int) -> list[_Portion]:
    """The first clusters with `most` memories in all, or the very first one alone."""
    whole = len(found) <= _AT_A_TIME
    groups = [list(group) for _, group in itertools.groupby(found[:_AT_A_TIME], key=lambda its: its.survivor_id)]
    portions = [
        _Portion(group[0].survivor_id, group, last=whole or n < len(groups) - 1) for n, group in enumerate(groups)
    ]
    size, taken = 0, list[_Portion]()
    for portion in portions:
        size += len(portion.planned)
        if taken and (size > most or not portion.last):
            break
        taken.append(portion)
    return taken


def _joining(portion: _Portion, as_compared: Mapping[UUID, Mergeable]) -> Joining | None:
    """As much of a cluster as still is what was compared, the one that stays first: it may be another by now."""
    ids = {portion.survivor, *(its.memory_id for its in portion.planned)}
    ranked = by_rank(as_compared[its].candidate for its in ids if its in as_compared)
    ranked.sort(key=lambda its: its.id != portion.survivor)
    together = [as_compared[its.id] for its in fitting(ranked)] if ranked else []
    together = [its for its in together if its.holds_with(together[0])]
    if len(together) < 2:
        return None
    return Joining(survivor=together[0], others=together[1:], fixed=together[0].candidate.pinned)


def _counted(before: Advance, joinings: Sequence[Joining], portions: Sequence[_Portion]) -> Advance:
    unfinished = sum(not portion.last for portion in portions)
    result = dict(before.result)
    result["merged"] += sum(len(joining.others) for joining in joinings)
    result["clusters"] += max(len(joinings) - unfinished, 0)
    done = before.done + sum(its.memory_id != its.survivor_id for portion in portions for its in portion.planned)
    return msgspec.structs.replace(before, result=result, done=done)


def _terms(params: MergeParams, threshold: float) -> dict[str, object]:
    """What a comparison depends on."""
    return {"threshold": threshold, "guard": params.guard}

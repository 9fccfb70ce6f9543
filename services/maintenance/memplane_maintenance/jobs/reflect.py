"""Reflect: a language model scores memories whose importance nobody gave, and comes to insights over what was written.

Each answer is stored in one transaction together with how far the run is, so that whoever goes on after a death asks
again what was not stored, and stores nothing twice.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.clients.chat import ChatModel, ChatRefused
from memplane_core.contracts.policy import ReflectRules
from memplane_core.domain.errors import NoLanguageModel, QuotaExceeded, Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import reflection
from memplane_core.storage.jobs import SAMPLE, Advance, save_job
from memplane_core.storage.reflection import GatheredPage, Text, Whose
from memplane_core.storage.session import Connection, Database
from memplane_maintenance.jobs import reflect_prompts as prompts
from memplane_maintenance.jobs.job import Finished, JobFailed, Run, RunLost, StepResult, checkpoint_of
from memplane_maintenance.jobs.reconcile_watch import STARTED_BY
from memplane_maintenance.jobs.reflect_asking import Asking
from memplane_maintenance.jobs.reflect_prompts import Insights
from memplane_maintenance.jobs.reflect_writes import store_insights, store_scores

_STEP_S: Final = 150.0
"""Longest that a step waits for the model: a task may take 180 s, and begins its last step after 10 at most."""

_AT_ONCE: Final = 2
"""Steps of a process under way at once: those that wait for a model must not take all of its threads."""

_TRIES: Final = 30
"""In vain, in a row: after that many, half an hour or so, a run that nobody asked for ends. A later one goes on."""

_ADDING_S: Final = 2.0
"""For how long a step adds up memories."""

_PAGE: Final = 20_000
"""Memories that are added up by one statement."""

_TURN_S: Final = 5.0
"""For how long a step waits for its turn."""

_SETTLE_S: Final = 15.0
"""A statement that began to write a memory before this has been committed, or has failed: they last 10 s at most."""

COUNTS: Final = (
    "scored", "rejected", "refused", "changed",
    "reflections", "insights", "repeated", "dropped", "unreadable",
    "questions", "prompt_tokens", "completion_tokens",
)  # fmt: skip


class Memo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is.

    Attributes:
        after: The memory that scoring has come to.
        narrow: Most memories in the next question, where the model's server refused one with more; 0 is no such limit.
    """

    phase: Literal["begin", "score", "reflect"] = "begin"
    after: UUID | None = None
    narrow: int = 0


class _Plan(msgspec.Struct, kw_only=True):
    """Whom a run has to look at.

    Attributes:
        after: The memory that adding up has come to; None where it has not begun, or has ended.
        memories: Those of each user and agent that are to be reflected upon, so far.
        importance: Of these.
        complete: All memories have been added up.
        left: Those still to be looked at, the next one last.
    """

    run: UUID
    after: UUID | None = None
    memories: Counter[Whose] = msgspec.field(default_factory=Counter[Whose])
    importance: dict[Whose, float] = {}
    complete: bool = False
    left: list[Whose] = []

    def add(self, page: GatheredPage) -> None:
        """Add what some memories come to."""
        for each in page.gathered:
            self.memories[each.whose] += each.memories
            self.importance[each.whose] = self.importance.get(each.whose, 0.0) + each.importance
        self.after, self.complete = page.last, page.last is None

    def close(self, *, threshold: float) -> None:
        """Keep those who have gathered enough, in a fixed order."""
        due = [whose for whose, importance in self.importance.items() if importance >= threshold]
        self.left = sorted(due, key=lambda whose: (whose.user_id or "", whose.agent_id or ""), reverse=True)
        self.memories = Counter({whose: self.memories[whose] for whose in due})
        self.importance = {}

    def questions(self, *, page: int) -> int:
        """That reflecting upon all of it takes."""
        return sum(math.ceil(memories / page) for memories in self.memories.values())


class Reflect:
    """The job of kind `reflect`. Its params are `ReflectRules`.

    Args:
        database: Of the memories.
        model: To ask; None where the installation has none.
        settle_s: For how long after it was asked for a run waits, before it takes it that whatever was written before
            can be seen.
    """

    def __init__(self, database: Database, model: ChatModel | None, *, settle_s: float = _SETTLE_S) -> None:
        self._database = database
        self._model = model
        self._settle_s = settle_s
        self._turns = asyncio.Semaphore(_AT_ONCE)
        # Lost with the process and made anew: whose memories are due stays out of the run's row.
        self._plans: dict[TenantId, _Plan] = {}

    async def step(self, run: Run) -> StepResult:
        """Score a batch, or reflect once."""
        memo, record = run.checkpoint(Memo), run.record
        if memo.phase == "begin":
            return await self._begin(run)
        if record.started_by == STARTED_BY and record.attempts >= _TRIES:
            raise JobFailed(f"given up for now: {record.error}")
        if self._model is None:
            raise Unavailable(str(NoLanguageModel()))
        try:
            async with asyncio.timeout(_TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            return _advance(run, memo, pause_s=1.0)
        try:
            asking = Asking(self._model, within_s=_STEP_S)
            return await (self._score if memo.phase == "score" else self._reflect)(run, memo, asking)
        finally:
            self._turns.release()

    async def abandon(self, run: Run, connection: Connection) -> None:
        """What has been stored is right as it is."""
        del connection
        self._plans.pop(run.tenant, None)

    async def _begin(self, run: Run) -> StepResult:
        async with self._database.tenant(run.tenant) as connection:
            unscored = await reflection.count_unscored(run.tenant, connection, until=run.record.created_at)
        if not run.record.dry_run:
            return _advance(run, Memo(phase="score"), total=unscored)
        plan = await self._plan(run)
        if not plan.complete:
            return _advance(run, Memo())
        del self._plans[run.tenant]
        page = run.params(ReflectRules).max_memories
        return Finished(
            {
                "unscored": unscored,
                "scopes": len(plan.left),
                "memories": plan.memories.total(),
                "questions": unscored + plan.questions(page=page),
            }
        )

    async def _plan(self, run: Run) -> _Plan:
        """Whom the run has to look at; not complete where that takes another step to find out.

        All memories are gone through page by page, so that neither a statement nor a step takes long.
        """
        plan = self._plans.get(run.tenant)
        if plan is None or plan.run != run.record.id:
            plan = self._plans[run.tenant] = _Plan(run=run.record.id)
        ends_at = time.monotonic() + _ADDING_S
        while not plan.complete:
            async with self._database.tenant(run.tenant) as connection:
                page = await reflection.gathered_page(
                    run.tenant, connection, until=run.record.created_at, after=plan.after, limit=_PAGE
                )
            plan.add(page)
            if plan.complete:
                plan.close(threshold=run.params(ReflectRules).threshold)
            if time.monotonic() >= ends_at:
                break
        return plan

    async def _score(self, run: Run, memo: Memo, asking: Asking) -> StepResult:
        async with self._database.tenant(run.tenant) as connection:
            page = await reflection.unscored_page(
                run.tenant,
                connection,
                until=run.record.created_at,
                after=memo.after,
                limit=asking.concurrency,
            )
            age_s = await reflection.age_s(run.tenant, connection, since=run.record.created_at)
        if not page:
            return _advance(run, Memo(phase="reflect"), pause_s=max(0.0, self._settle_s - age_s))
        opinions = await asking.scores(page)
        answered = [text for text in page if text.id in opinions]
        scores = {name: score for name, score in opinions.items() if isinstance(score, float)}
        passed = [text for text in answered if text.id not in scores]
        counts = asking.counts + Counter(score for score in opinions.values() if isinstance(score, str))
        async with self._database.tenant(run.tenant) as connection:
            await run.hold(connection)
            done = await store_scores(run, connection, [text for text in answered if text.id in scores], scores=scores)
            await reflection.pass_over(run.tenant, connection, passed)
            counts.update(scored=done, changed=len(scores) - done)
            # Those without an answer are asked about again: the page is not done before all of it is.
            after = memo.after if asking.trouble else page[-1].id
            advance = _advance(run, msgspec.structs.replace(memo, after=after), done=len(answered), counts=counts)
            await _save(run, connection, advance)
        return msgspec.structs.replace(advance, held_up_by=asking.trouble)

    async def _reflect(self, run: Run, memo: Memo, asking: Asking) -> StepResult:
        known = self._plans.get(run.tenant)
        was_complete = known is not None and known.run == run.record.id and known.complete
        plan = await self._plan(run)
        if not was_complete:
            ahead = plan.questions(page=run.params(ReflectRules).max_memories)
            return _advance(run, memo, total=run.record.done + ahead)
        if not plan.left:
            del self._plans[run.tenant]
            return Finished(dict(run.record.result))
        rules, whose = run.params(ReflectRules), plan.left[-1]
        limit = min(rules.max_memories, memo.narrow or rules.max_memories)
        async with self._database.tenant(run.tenant) as connection:
            sources = await reflection.sources_of(
                run.tenant, connection, whose, until=run.record.created_at, limit=limit
            )
        if not sources.texts or sources.importance < rules.threshold:
            plan.left.pop()
            return _advance(run, msgspec.structs.replace(memo, narrow=0))
        texts = prompts.shown(sources.texts)
        try:
            insights = await asking.insights(texts, most=rules.max_insights)
        except ChatRefused:
            if len(texts) > 1:
                narrower = msgspec.structs.replace(memo, narrow=len(texts) // 2)
                return _advance(run, narrower, counts=asking.counts)
            asking.counts["refused"] += 1
            insights = Insights([], 0)
        return await self._store(run, whose, texts, insights=insights, counts=asking.counts)

    async def _store(
        self, run: Run, whose: Whose, texts: Sequence[Text], *, insights: Insights, counts: Counter[str]
    ) -> StepResult:
        memo = run.checkpoint(Memo)
        try:
            async with self._database.tenant(run.tenant) as connection:
                await run.hold(connection)
                if not await reflection.unchanged(run.tenant, connection, texts):
                    # What is gone, hidden or says something else now must not come back as an insight.
                    again = _advance(run, memo, counts=counts)
                    return msgspec.structs.replace(again, held_up_by="memories were changed while they were read")
                made = await store_insights(run, connection, whose, insights=insights.found, now=datetime.now(UTC))
                await reflection.mark_seen(run.tenant, connection, whose, last=texts[-1])
                counts.update(
                    reflections=1,
                    insights=len(made),
                    repeated=len(insights.found) - len(made),
                    dropped=insights.dropped,
                )
                # Wider again, step by step: it may have been one text that was at fault.
                advance = _advance(run, msgspec.structs.replace(memo, narrow=2 * memo.narrow), done=1, counts=counts)
                advance = msgspec.structs.replace(advance, sample=[*run.record.sample, *made][:SAMPLE])
                await _save(run, connection, advance)
        except QuotaExceeded as error:
            raise JobFailed(str(error)) from error
        return advance


def _advance(
    run: Run,
    memo: Memo,
    *,
    done: int = 0,
    counts: Mapping[str, int] | None = None,
    total: int | None = None,
    pause_s: float = 0.0,
) -> Advance:
    record, more = run.record, counts or {}
    total = record.total or 0 if total is None else total
    return Advance(
        checkpoint=checkpoint_of(memo),
        done=min(total, record.done + done),
        total=total,
        result={name: record.result.get(name, 0) + more.get(name, 0) for name in COUNTS},
        pause_s=pause_s,
    )


async def _save(run: Run, connection: Connection, advance: Advance) -> None:
    """Write down how far the run is together with what it did. Raises RunLost."""
    saved = await save_job(run.tenant, connection, run.record.id, epoch=run.record.epoch, advance=advance)
    if saved is None:
        raise RunLost

"""Reflect: a language model scores memories whose importance nobody gave, and comes to insights over what was written.

Each answer is stored in one transaction together with how far the run is, so that whoever goes on after a death asks
again what was not stored, and stores nothing twice.
"""

import asyncio
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
from memplane_core.domain.importance import UnclearImportance, importance_of
from memplane_core.storage import reflection
from memplane_core.storage.jobs import Advance, save_job
from memplane_core.storage.reflection import Text, Whose
from memplane_core.storage.session import Connection, Database
from memplane_maintenance.jobs import reflect_prompts as prompts
from memplane_maintenance.jobs.job import Finished, JobFailed, Run, RunLost, StepResult, checkpoint_of
from memplane_maintenance.jobs.reconcile_watch import STARTED_BY
from memplane_maintenance.jobs.reflect_prompts import Insights, UnreadableInsights
from memplane_maintenance.jobs.reflect_writes import store_insights, store_scores
from memplane_maintenance.metrics import LLM_QUESTIONS, LLM_TOKENS

_STEP_S: Final = 150.0
"""Longest that a step waits for the model: a task may take 180 s, and begins its last step after 10 at most."""

_AT_ONCE: Final = 2
"""Steps of a process under way at once: those that wait for a model must not take all of its threads."""

_TRIES: Final = 30
"""In vain, in a row: after that many, half an hour or so, a run that nobody asked for ends. A later one goes on."""

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
        del run, connection

    async def _begin(self, run: Run) -> StepResult:
        rules = run.params(ReflectRules)
        async with self._database.tenant(run.tenant) as connection:
            ahead = await reflection.outlook(
                run.tenant,
                connection,
                until=run.record.created_at,
                threshold=rules.threshold,
                page=rules.max_memories,
            )
        if run.record.dry_run:
            return Finished(
                {
                    "unscored": ahead.unscored,
                    "scopes": ahead.scopes,
                    "memories": ahead.memories,
                    "questions": ahead.unscored + ahead.pages,
                }
            )
        return _advance(run, Memo(phase="score"), total=ahead.unscored + ahead.pages)

    async def _score(self, run: Run, memo: Memo, asking: "Asking") -> StepResult:
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

    async def _reflect(self, run: Run, memo: Memo, asking: "Asking") -> StepResult:
        rules, until = run.params(ReflectRules), run.record.created_at
        async with self._database.tenant(run.tenant) as connection:
            whose = await reflection.next_whose(run.tenant, connection, until=until, threshold=rules.threshold)
            if whose is None:
                return Finished(dict(run.record.result))
            limit = min(rules.max_memories, memo.narrow or rules.max_memories)
            texts = await reflection.sources_of(run.tenant, connection, whose, until=until, limit=limit)
        texts = prompts.shown(texts)
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
                    insights=made,
                    repeated=len(insights.found) - made,
                    dropped=insights.dropped,
                )
                advance = _advance(run, Memo(phase="reflect"), done=1, counts=counts)
                await _save(run, connection, advance)
        except QuotaExceeded as error:
            raise JobFailed(str(error)) from error
        return advance


class Asking:
    """What is asked of the model in one step, and what it came to.

    Args:
        model: To ask.
        within_s: For all of it together.

    Attributes:
        counts: Questions, tokens, and answers that were of no use.
        trouble: Why some questions had no answer, if any.
    """

    def __init__(self, model: ChatModel, *, within_s: float) -> None:
        self._model = model
        self._ends_at = time.monotonic() + within_s
        self.counts: Counter[str] = Counter()
        self.trouble: str | None = None

    @property
    def concurrency(self) -> int:
        """How many questions the model takes at once."""
        return self._model.concurrency

    async def scores(self, texts: Sequence[Text]) -> Mapping[UUID, float | Literal["rejected", "refused"]]:
        """What the model says of each that it answers about: an importance, or why it is none.

        Raises:
            Unavailable: It answers about none, or refuses whatever it is asked.
        """
        found = await asyncio.gather(*(self._score(text) for text in texts), return_exceptions=True)
        opinions: dict[UUID, float | Literal["rejected", "refused"]] = {}
        for text, opinion in zip(texts, found, strict=True):
            if isinstance(opinion, Unavailable):
                self.trouble = str(opinion)
            elif isinstance(opinion, BaseException):
                raise opinion
            else:
                opinions[text.id] = opinion
        if not opinions and self.trouble is not None:
            raise Unavailable(self.trouble)
        return opinions

    async def insights(self, texts: Sequence[Text], *, most: int) -> Insights:
        """What the model comes to; nothing where it does not say so in the form that was asked for, twice.

        Raises:
            ChatRefused: It takes offence at these texts, or they are too many.
            Unavailable: It does not answer, or refuses whatever it is asked.
        """
        for system in (prompts.REFLECT, prompts.REFLECT_AGAIN):
            try:
                answer = await self._ask(system.format(most=most), prompts.to_reflect(texts))
            except ChatRefused as refused:
                await self._probe(refused)
                raise
            try:
                return prompts.insights_of(answer, texts, most=most)
            except UnreadableInsights:
                continue
        self.counts["unreadable"] += 1
        return Insights([], 0)

    async def _score(self, text: Text) -> float | Literal["rejected", "refused"]:
        for system in (prompts.SCORE, prompts.SCORE_AGAIN):
            try:
                return importance_of(await self._ask(system, prompts.to_score(text)))
            except UnclearImportance:
                continue
            except ChatRefused as refused:
                await self._probe(refused)
                return "refused"
        return "rejected"

    async def _probe(self, refused: ChatRefused) -> None:
        """Return where the model answers something else: then the text is at fault, and not the configuration."""
        try:
            await self._ask(prompts.PROBE, "{}")
        except ChatRefused:
            raise Unavailable(str(refused)) from refused

    async def _ask(self, system: str, user: str) -> str:
        self.counts["questions"] += 1
        within_s = max(0.0, self._ends_at - time.monotonic())
        try:
            answer = await self._model.ask(system=system, user=user, within_s=within_s)
        except ChatRefused:
            LLM_QUESTIONS.labels("refused").inc()
            raise
        except Unavailable:
            LLM_QUESTIONS.labels("unavailable").inc()
            raise
        LLM_QUESTIONS.labels("answered").inc()
        LLM_TOKENS.labels("prompt").inc(answer.prompt_tokens)
        LLM_TOKENS.labels("completion").inc(answer.completion_tokens)
        self.counts.update(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens)
        return answer.text


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

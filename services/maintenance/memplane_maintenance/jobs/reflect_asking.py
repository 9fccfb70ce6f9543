"""Questions to a language model: what is asked again, what is given up, and what is the model's fault or the text's."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

from memplane_core.clients.chat import ChatModel, ChatRefused
from memplane_core.domain.errors import Unavailable
from memplane_core.domain.importance import UnclearImportance, importance_of
from memplane_core.storage.reflection import Text
from memplane_maintenance.jobs import reflect_prompts as prompts
from memplane_maintenance.jobs.reflect_prompts import Insights, UnreadableInsights
from memplane_maintenance.metrics import LLM_QUESTIONS, LLM_TOKENS


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

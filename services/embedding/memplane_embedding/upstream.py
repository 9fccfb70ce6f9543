"""Models behind another server's URL."""

import asyncio
import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np

from memplane_core.background import together
from memplane_core.clients.openai import OpenAIEmbeddings, TextRefused
from memplane_core.domain.embedding import EmbedItem, InputType, Lane, ModelProfile, Window
from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_embedding.pool import LANES
from memplane_embedding.provider import Embedded, failed
from memplane_embedding.settings import UpstreamSettings

_HALF_TOKENS: Final = ((0x80, 1), (0x800, 2), (0x10000, 4))
"""Upper ends of code-point ranges and the half tokens that one of them may take in a byte-pair vocabulary."""
_HALF_TOKENS_BEYOND: Final = 8
_SPECIAL_TOKENS: Final = 4
_HARMLESS: Final = "hello"


class UpstreamProvider:
    """A model of another server. Windows are estimated, since its tokenizer is not known here."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._client = OpenAIEmbeddings(
            settings.url,
            key=settings.key.get_secret_value(),
            model=settings.model or settings.name,
            dim=settings.dim,
            dimensions=settings.dimensions,
        )
        self._lanes = {lane: asyncio.Semaphore(settings.concurrency) for lane in LANES}
        kept = settings.model_dump(mode="json", exclude={"key", "concurrency", "timeout_s", "batch_size"})
        self._build = hashlib.sha256(msgspec.json.encode(kept)).hexdigest()

    @property
    def profile(self) -> ModelProfile:
        """What callers need to know of it, as the settings say."""
        its = self._settings
        return ModelProfile(
            name=its.name,
            dim=its.dim,
            max_tokens=its.max_tokens,
            span=its.span,
            anchor_low=its.anchor_low,
            anchor_high=its.anchor_high,
            anchor_cjk=its.anchor_cjk,
            multilingual=its.multilingual,
        )

    @property
    def build(self) -> str:
        """Changes with the settings that shape vectors."""
        return self._build

    async def load(self) -> None:
        """Nothing is to be loaded."""

    async def embed(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, input_type: InputType, lane: Lane
    ) -> list[Embedded]:
        """Windows and vectors of each text, in order. Raises EmbeddingUnavailable."""
        del tenant  # the upstream knows one key, ours
        prefix = self._settings.query_prefix if input_type == "query" else self._settings.passage_prefix
        plans = [_plan(prefix, item, max_tokens=self._settings.max_tokens) for item in items]
        texts = [text for plan in plans for text in plan.texts]
        size = self._settings.batch_size
        batches = [texts[at : at + size] for at in range(0, len(texts), size)]
        answers = await together(self._ask(batch, lane) for batch in batches)
        vectors = [vector for answer in answers for vector in answer]
        found: list[Embedded] = []
        for plan in plans:
            mine, vectors = vectors[: len(plan.texts)], vectors[len(plan.texts) :]
            found.append(self._embedded(plan, mine))
        return found

    async def count_tokens(self, items: Sequence[EmbedItem], *, input_type: InputType) -> int:
        """How many tokens `embed` would count: an estimate, as its windows are."""
        prefix = self._settings.query_prefix if input_type == "query" else self._settings.passage_prefix
        return sum(_tokens(prefix, item) for item in items)

    async def close(self) -> None:
        """Give back the connections."""
        await self._client.close()

    async def _ask(self, texts: Sequence[str], lane: Lane) -> list[FloatArray | str]:
        """A vector for each text, or why the upstream refused it: a refused batch is halved until the text is found."""
        try:
            async with self._lanes[lane]:
                return list(await self._client.embed(texts, timeout_s=self._settings.timeout_s))
        except TextRefused as error:
            if len(texts) == 1:
                await self._check_taken(_HARMLESS)
                return [str(error)]
        half = len(texts) // 2
        return [*await self._ask(texts[:half], lane), *await self._ask(texts[half:], lane)]

    async def _check_taken(self, text: str) -> None:
        """Tell a bad text from a bad setting: raises EmbeddingUnavailable where a harmless text is refused too."""
        try:
            await self._client.embed([text], timeout_s=self._settings.timeout_s)
        except TextRefused as error:
            raise EmbeddingUnavailable(f"the embedding upstream refuses every text: {error}", retry_after=60) from None

    def _embedded(self, plan: "_Plan", answers: Sequence[FloatArray | str]) -> Embedded:
        vectors: list[FloatArray] = []
        for answer in answers:
            if isinstance(answer, str):
                return failed(f"the upstream refuses this text: {answer}"[:300], dim=self._settings.dim)
            vectors.append(answer)
        return Embedded(plan.windows, np.stack(vectors), plan.tokens)


class _Plan(msgspec.Struct, frozen=True):
    """What is sent for one text."""

    windows: list[Window]
    texts: list[str]
    tokens: int


def _plan(prefix: str, item: EmbedItem, *, max_tokens: int) -> _Plan:
    room = 2 * (max_tokens - _SPECIAL_TOKENS) - _half_tokens(prefix)
    head = _fitting(item.head, room // 2)
    windows = estimated_windows(item.text, half_tokens=max(room - _half_tokens(head), 16))
    texts = [prefix + head + item.text[window.start : window.end] for window in windows]
    return _Plan(windows, texts, _tokens(prefix, EmbedItem(item.text, head)))


def _tokens(prefix: str, item: EmbedItem) -> int:
    return (_half_tokens(prefix + item.head + item.text) + 1) // 2


def _cost(char: str) -> int:
    return next((cost for end, cost in _HALF_TOKENS if ord(char) < end), _HALF_TOKENS_BEYOND)


def _half_tokens(text: str) -> int:
    return sum(map(_cost, text))


def _fitting(text: str, half_tokens: int) -> str:
    """The longest beginning of `text` that costs at most `half_tokens`."""
    spent = 0
    for n, char in enumerate(text):
        spent += _cost(char)
        if spent > half_tokens:
            return text[:n]
    return text


def estimated_windows(text: str, *, half_tokens: int) -> list[Window]:
    """Windows that cost at most `half_tokens` (at least 16) each, overlap by an eighth and cover the text."""
    reach = [*accumulate(map(_cost, text), initial=0)]
    windows: list[Window] = []
    start = 0
    while True:
        end = bisect_right(reach, reach[start] + half_tokens) - 1
        windows.append(Window(start, end))
        if end >= len(text):
            return windows
        start = bisect_left(reach, reach[end] - half_tokens // 8)

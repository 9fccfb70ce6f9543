"""Turns the texts of a write into what they are found by, or leaves the vectors to the drain."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import msgspec

from memplane_core.domain.chunking import FindableText, findable
from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.errors import MemplaneError, QuotaExceeded
from memplane_core.domain.index import Generation
from memplane_core.domain.memory import head_of
from memplane_core.domain.ports import EmbeddedText, Embedder, TokenMeter
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_retrieval.settings import WriteSettings

_log = get_logger(__name__)


class TextToChunk(msgspec.Struct, frozen=True):
    """What decides a memory's indexed text."""

    content: str
    actor: str | None
    occurred_at: datetime


class Chunker:
    """Embeds what can be embedded before the answer is due.

    Args:
        embedder: Makes the vectors, and has its own eye on the tenant's tokens.
        settings: How much is embedded at once.
        meter: Says what of the tenant's tokens is left for texts that are embedded later.
    """

    def __init__(self, embedder: Embedder, settings: WriteSettings, *, meter: TokenMeter | None = None) -> None:
        self._embedder = embedder
        self._settings = settings
        self._meter = meter

    async def texts(
        self, tenant: TenantId, texts: Sequence[TextToChunk], *, generation: Generation
    ) -> list[FindableText]:
        """What each is found by, in order; without vectors where there is too much text or the embedder is away.

        Raises:
            QuotaExceeded: The tenant has too few tokens left for them today.
        """
        items = [EmbedItem(text.content, head_of(text.actor, text.occurred_at)) for text in texts]
        embedded: Sequence[EmbeddedText | None] = [None] * len(items)
        if sum(len(item.text.encode()) + len(item.head.encode()) for item in items) > self._settings.sync_embed_bytes:
            await self._check_allowance(tenant, texts)
            # Their words alone take seconds, which other requests should not wait for.
            return await asyncio.to_thread(_chunked, items, embedded)
        if items:
            try:
                embedded = await self._embedder.embed_passages(
                    tenant, items, model=generation.model, lane="write", timeout_s=self._settings.embed_timeout_s
                )
            except QuotaExceeded:
                raise
            except MemplaneError as error:  # whatever it refuses is stored all the same, and the drain asks again
                _log.warning("stored without vectors", memories=len(items), reason=type(error).__name__)
            embedded = [_fitting(result, generation) for result in embedded]
        return _chunked(items, embedded)

    async def _check_allowance(self, tenant: TenantId, texts: Sequence[TextToChunk]) -> None:
        allowance = None if self._meter is None else await self._meter.allowance(tenant)
        needed = sum(map(tokens_later, texts))
        if allowance is not None and needed > allowance.left:
            raise allowance.exceeded(f"these texts are taken to have {needed:,} tokens")


def tokens_later(text: TextToChunk) -> int:
    """What a text that is embedded later is charged when it is written: a token for four bytes, the usual rate."""
    return len(text.content.encode()) // 4 + 1


def _fitting(result: EmbeddedText | None, generation: Generation) -> EmbeddedText | None:
    """Vectors that the tenant's generation can hold; None where the model makes others than it did."""
    if result is None or result.error is not None or result.vectors.shape == (len(result.windows), generation.dim):
        return result
    _log.error("the model's vectors do not fit: reindex the tenant", tenant=str(generation.tenant), dim=generation.dim)
    return None


def _chunked(items: Sequence[EmbedItem], embedded: Sequence[EmbeddedText | None]) -> list[FindableText]:
    return [findable(item.text, head=item.head, embedded=result) for item, result in zip(items, embedded, strict=True)]

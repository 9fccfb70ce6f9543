"""The embedding service's internal routes: MessagePack both ways, numbers as raw little-endian float32."""

import msgspec

from memplane_core.domain.embedding import EmbedItem, InputType, Lane, Window

EMBED_PATH = "/internal/v1/embed"
PROFILES_PATH = "/internal/v1/models"
"""Answers with `domain.embedding.ModelProfiles`."""

RERANK_PATH = "/internal/v1/rerank"
MAX_RERANK_TEXTS = 50
"""Most texts of one `RerankRequest`."""


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of one tenant; the tenant travels in the internal token.

    Attributes:
        lane: Queries go before writes, writes before bulk work.
        most_tokens: More than these are refused with `quota_exceeded`, before any is embedded; None: no limit.
    """

    model: str
    input_type: InputType
    lane: Lane
    items: list[EmbedItem]
    most_tokens: int | None = None


class EmbedResult(msgspec.Struct, frozen=True, array_like=True):
    """One item's windows in order, or why it cannot be embedded however often it is tried."""

    windows: list[Window]
    error: str | None = None


class EmbedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Results in the order of the request's items.

    Attributes:
        vectors: float32 rows of all windows of all items, one after another: `sum(windows) * dim * 4` bytes.
        tokens: Of the texts that had to be computed, as the model counts them; what was in a cache costs nothing.
    """

    model: str
    dim: int
    results: list[EmbedResult]
    vectors: bytes
    tokens: int = 0


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A query of one tenant and the texts to score against it; the tenant travels in the internal token.

    Attributes:
        texts: At most `MAX_RERANK_TEXTS`, each with whatever the model should know of it, say its date and actor.
    """

    query: str
    texts: list[str]


class RerankResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Scores in the order of the request's texts.

    Attributes:
        model: The cross-encoder that was used.
        scores: One float32 a text, 0 (does not fit) to 1 (answers the query): the sigmoid of the model's logit, so that
            `log(score / (1 - score))` is the logit. Comparable within a query; not a probability that was calibrated.
    """

    model: str
    scores: bytes

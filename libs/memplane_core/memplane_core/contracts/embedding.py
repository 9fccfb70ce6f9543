"""The embedding service's internal route: MessagePack both ways, vectors as raw little-endian float32."""

import msgspec

from memplane_core.domain.embedding import EmbedItem, InputType, Lane, Window

EMBED_PATH = "/internal/v1/embed"
PROFILES_PATH = "/internal/v1/models"
"""Answers with `domain.embedding.ModelProfiles`."""


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of one tenant; the tenant travels in the internal token.

    Attributes:
        lane: Queries go before writes, writes before bulk work.
    """

    model: str
    input_type: InputType
    lane: Lane
    items: list[EmbedItem]


class EmbedResult(msgspec.Struct, frozen=True, array_like=True):
    """One item's windows in order, or why it cannot be embedded however often it is tried."""

    windows: list[Window]
    error: str | None = None


class EmbedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Results in the order of the request's items.

    Attributes:
        vectors: float32 rows of all windows of all items, one after another: `sum(windows) * dim * 4` bytes.
    """

    model: str
    dim: int
    results: list[EmbedResult]
    vectors: bytes

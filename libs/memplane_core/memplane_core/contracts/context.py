"""Bodies of the route that packs memories into a prompt."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import Degraded, RecallFields, TopK
from memplane_core.domain.budget import Counter
from memplane_core.domain.context import ContextTemplate, GroupBy, Order

MaxTokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ContextRequest(RecallFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a prompt should remember now.

    Attributes:
        query: What the prompt is about: the user's last words, say.
        top_k: Most memories that are considered.
        touch: False leaves no trace in the memories that are given.
        include_short_term: A session whose newest observations come before the memories, in their order, whatever the
            query is.
        max_tokens: Longest block.
        counter: What tokens are counted by. `estimate` is the platform's own count, which rather says too many than too
            few; `bytes` are bytes of UTF-8, of which no tokenizer that works on bytes makes more tokens.
        short_term_share: Part of `max_tokens` that they may take; what they leave is for memories.
        group_by: What memories stand together by.
        order: How they stand within a group: the most useful first, or in the order in which they happened.
        template: What the lines look like; the policy's when left out.
        allow_truncation: True lets one memory be cut to the room that is left; none is otherwise.
    """

    top_k: TopK = 50
    max_tokens: MaxTokens = 1_000
    counter: Counter = "estimate"
    short_term_share: Share = 0.5
    group_by: GroupBy = "memory_type"
    order: Order = "useful"
    template: ContextTemplate | None = None
    allow_truncation: bool = False


class ContextItem(msgspec.Struct, kw_only=True):
    """One memory or observation of a block.

    Attributes:
        n: Its number in the block.
        kind: Whether it is a memory, or still held by the session.
        truncated: Its text in the block is cut, and ends in `…`.
        score: As in a search; null for what was not searched for, as is `relevance`.
    """

    n: int
    id: UUID
    kind: Literal["memory", "observation"]
    truncated: bool
    occurred_at: datetime
    score: float | None
    relevance: float | None


class ContextResponse(msgspec.Struct, kw_only=True):
    """A block of text for a prompt.

    Attributes:
        text: Empty where nothing is remembered, or nothing fits.
        tokens: What it comes to by `counter`; never above the `max_tokens` of the request.
        items: What stands in it, in its order.
        left_out: Of what was considered, what had no room.
        degraded: As in a search.
    """

    text: str
    tokens: int
    counter: Counter
    items: list[ContextItem]
    left_out: int
    degraded: list[Degraded]

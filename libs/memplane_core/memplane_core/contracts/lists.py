"""Lists of memories: what may be asked, and in which order they come."""

from typing import Annotated, Literal

import msgspec

from memplane_core.contracts.filters import Filters
from memplane_core.contracts.memories import GivenValidAt
from memplane_core.domain.memory import State

SortKey = Literal[
    "created_at", "updated_at", "occurred_at", "last_accessed_at", "importance", "priority", "access_count"
]
Sort = Literal[
    "created_at", "-created_at", "updated_at", "-updated_at", "occurred_at", "-occurred_at",
    "last_accessed_at", "-last_accessed_at", "importance", "-importance", "priority", "-priority",
    "access_count", "-access_count",
]  # fmt: skip
"""A minus sign puts the newest or largest first. What is equal comes in the order of ids."""


class ListRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One page of the memories that match.

    Attributes:
        state: `active`, or what is hidden until it is purged: `forgotten`, or `merged` into another memory.
        valid_at: The moment at which what is listed must hold, or `any`; when left out now, and `any` for what is
            hidden.
        sort: What the list is ordered by, `-` for the newest or largest first.
        limit: Most memories in the answer.
        cursor: `next_cursor` of the page before; it goes with the same `filters`, `state`, `valid_at` and `sort`.
    """

    filters: Filters = {}
    state: State = "active"
    valid_at: GivenValidAt | None = None
    sort: Sort = "-created_at"
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None

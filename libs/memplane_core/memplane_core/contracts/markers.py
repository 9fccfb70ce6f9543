"""Bodies of the routes that forget memories, bring them back, and say how useful they were."""

from typing import Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.filters import Filters


class FeedbackGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody says of a memory that was recalled.

    Attributes:
        value: Whether it helped.
    """

    value: Literal["helpful", "not_helpful"]


class FeedbackCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of a memory so far. It moves the priority when that is next worked out.

    Attributes:
        helpful: How often it helped.
        not_helpful: How often it did not.
        priority: As it is now.
    """

    id: UUID
    helpful: int
    not_helpful: int
    priority: int


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories to forget together.

    Attributes:
        filters: What they match; at least one condition.
        dry_run: Only tell what would be forgotten.
    """

    filters: Filters
    dry_run: bool = False


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What was forgotten.

    Attributes:
        forgotten: How many this request has hidden; in a dry run, how many match.
        sample: Ids of some of them, at most 20.
        complete: False where time ran out: what matches and is not hidden yet is hidden by sending the request again,
            with another `Idempotency-Key` where it has one.
    """

    dry_run: bool
    forgotten: int
    sample: list[UUID]
    complete: bool

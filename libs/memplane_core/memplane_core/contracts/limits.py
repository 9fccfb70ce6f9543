"""Limits of a tenant and of a key, and what has been used of them. Only the admin routes set limits."""

from datetime import date, datetime
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

MAX_BODY_BYTES: Final = 48 * 1024 * 1024
"""The largest body that any route takes, whatever a tenant's limits say."""

MAX_BATCH: Final = 1000
"""The most memories that any batch takes."""

Unlimited = Literal["unlimited"]
RateClass = Literal["write", "search", "admin"]

Amount = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
BodyBytes = Annotated[int, msgspec.Meta(ge=1024, le=MAX_BODY_BYTES)]
BatchItems = Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH)]


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most so many requests in any span of so many seconds.

    Attributes:
        requests: All of them may come at once.
        seconds: Length of the span.
    """

    requests: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 1


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for one key, on top of its tenant's limits. Null: nothing more than those.

    Attributes:
        write: Requests that change something.
        search: Requests that read.
        admin: Requests of the tenant's own administration: keys, policy, jobs, export.
        body_bytes: Longest body of a request; no route takes more than it does anyway.
        batch_items: Most memories in one batch.
    """

    write: Rate | None = None
    search: Rate | None = None
    admin: Rate | None = None
    body_bytes: BodyBytes | None = None
    batch_items: BatchItems | None = None


class KeyLimitsPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a key's limits; what is not named stays, and null takes a limit away."""

    write: Rate | UnsetType | None = UNSET
    search: Rate | UnsetType | None = UNSET
    admin: Rate | UnsetType | None = UNSET
    body_bytes: BodyBytes | UnsetType | None = UNSET
    batch_items: BatchItems | UnsetType | None = UNSET


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for all keys of a tenant together. Null is the installation's default, "unlimited" is no limit.

    Attributes:
        write: Requests that change something.
        search: Requests that read.
        admin: Requests of the tenant's own administration: keys, policy, jobs, export.
        tokens_a_day: Tokens of new texts and queries, from midnight to midnight UTC.
        stored_memories: Active memories, and observations that sessions hold; what is forgotten, merged or deleted
            does not count.
        body_bytes: Longest body of a request; no route takes more than it does anyway.
        batch_items: Most memories in one batch.
    """

    write: Rate | Unlimited | None = None
    search: Rate | Unlimited | None = None
    admin: Rate | Unlimited | None = None
    tokens_a_day: Amount | Unlimited | None = None
    stored_memories: Amount | Unlimited | None = None
    body_bytes: BodyBytes | None = None
    batch_items: BatchItems | None = None


class TenantLimitsPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a tenant's limits; what is not named stays, and null goes back to the installation's default."""

    write: Rate | Unlimited | UnsetType | None = UNSET
    search: Rate | Unlimited | UnsetType | None = UNSET
    admin: Rate | Unlimited | UnsetType | None = UNSET
    tokens_a_day: Amount | Unlimited | UnsetType | None = UNSET
    stored_memories: Amount | Unlimited | UnsetType | None = UNSET
    body_bytes: BodyBytes | UnsetType | None = UNSET
    batch_items: BatchItems | UnsetType | None = UNSET


class EffectiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What holds once the installation's defaults are in their places. Null: no limit.

    Attributes:
        write: Requests that change something.
        search: Requests that read.
        admin: Requests of the tenant's own administration: keys, policy, jobs, export.
        tokens_a_day: Tokens of new texts and queries, from midnight to midnight UTC.
        stored_memories: Active memories, and observations that sessions hold.
        body_bytes: Longest body of a request.
        batch_items: Most memories in one batch.
    """

    write: Rate | None = None
    search: Rate | None = None
    admin: Rate | None = None
    tokens_a_day: int | None = None
    stored_memories: int | None = None
    body_bytes: int = MAX_BODY_BYTES
    batch_items: int = MAX_BATCH


class TenantLimitsView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's limits as they were set, and as they hold."""

    tenant_id: UUID
    limits: TenantLimits
    effective: EffectiveLimits


class KeyLimitsView(msgspec.Struct, frozen=True, kw_only=True):
    """A key's limits as they were set."""

    tenant_id: UUID
    key_id: str
    limits: KeyLimits


class QuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """How full a quota is. `limit` and `left` are null where there is none.

    Attributes:
        resets_at: When counting begins anew; null where it never does.
    """

    used: int
    limit: int | None
    left: int | None
    resets_at: datetime | None = None


class UsageDay(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant did on a day, from midnight to midnight UTC.

    Attributes:
        tokens: Of texts and queries that were embedded; what was in a cache costs nothing.
        writes: Requests that changed something, answered without an error.
        searches: Searches, answered without an error.
    """

    day: date
    tokens: int
    writes: int
    searches: int


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant has and does.

    Attributes:
        stored_memories: Active memories now, together with the observations that sessions hold.
        held_observations: How many of those are observations.
        tokens_today: Tokens embedded since midnight UTC.
        days: Each day of the range on which something happened, oldest first; a few seconds behind.
        limits: What holds for the tenant.
    """

    tenant_id: UUID
    stored_memories: QuotaUse
    held_observations: int
    tokens_today: QuotaUse
    days: list[UsageDay]
    limits: EffectiveLimits

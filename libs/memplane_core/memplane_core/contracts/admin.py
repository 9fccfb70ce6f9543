"""Bodies of the admin routes: tenants and their keys."""

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from memplane_core.contracts.memories import EntityId
from memplane_core.domain.tenancy import Scope

MAX_OVERLAP_S: Final = 30 * 24 * 3600

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class TenantCreate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant to make. Names are unique among living tenants."""

    name: Name


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as ops see it."""

    id: UUID
    name: str
    created_at: datetime


class TenantPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants in the order they were made."""

    results: list[TenantView]
    next_cursor: str | None


class Bind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose memories alone a key can touch. What is null is not bound.

    Attributes:
        user_id: Every write gets it, every read is among its memories, and naming another is refused.
        agent_id: The same.
    """

    user_id: EntityId | None = None
    agent_id: EntityId | None = None


class KeyCreate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make. Its secret is shown once, in the answer.

    Attributes:
        expires_at: The key is refused from then on; never when left out. A naive time is UTC. A key that expires makes
            none that lives longer, and none that lives forever.
        bind: Forced into every read and write of the key. Routes about more than single memories are closed to it.
    """

    name: Name
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=4)]
    expires_at: datetime | None = None
    bind: Bind | None = None


class KeyRotate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a key is replaced by a new one of the same name, scopes and bind.

    Attributes:
        overlap_s: For this many seconds both are valid, so that nothing stops while the new one is handed out; 0 ends
            the old one at once.
        expires_at: Of the new key: null is never, and the old one's when left out. A naive time is UTC.
    """

    overlap_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_OVERLAP_S)] = 24 * 3600
    expires_at: datetime | UnsetType | None = UNSET


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret.

    Attributes:
        last_used_at: To the minute or so; null where it was never used.
        replaced_by: Id of the key that a rotation put in its place.
    """

    id: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    bind: Bind | None
    last_used_at: datetime | None
    replaced_by: str | None


class KeyCreated(KeyView, frozen=True, kw_only=True):
    """A new key with its secret, which cannot be shown again."""

    key: str


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's keys in the order they were made, revoked ones included."""

    results: list[KeyView]
    next_cursor: str | None

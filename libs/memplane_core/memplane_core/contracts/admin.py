"""Bodies of the admin routes: tenants and their keys."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from memplane_core.domain.tenancy import Scope

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


class KeyCreate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make. Its secret is shown once, in the answer.

    Attributes:
        expires_at: The key is refused from then on; never when left out. A naive time is UTC.
    """

    name: Name
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=4)]
    expires_at: datetime | None = None


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class KeyCreated(KeyView, frozen=True, kw_only=True):
    """A new key with its secret, which cannot be shown again."""

    key: str


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's keys in the order they were made, revoked ones included."""

    results: list[KeyView]
    next_cursor: str | None

"""Bodies of the audit routes."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

AuditResult = Literal["done", "refused"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody did, or was refused.

    Attributes:
        tenant_id: Whose it was done to; null where it is about no tenant.
        actor: Id of an API key, `admin` or `ops`.
        action: The operation, named as in this document.
        target: Id of what it was done to; empty where it was refused before that was known.
        result: `refused`: the key is valid and may not do this.
        source: Address that the request came from; null where it is not known.
        request_id: `X-Request-Id` of the answer.
        details: What else is worth knowing, by name; never content or secrets.
    """

    id: UUID
    at: datetime
    tenant_id: UUID | None
    actor: str
    action: str
    target: str
    result: AuditResult
    source: str | None
    request_id: str
    details: dict[str, Any]


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; `next_cursor` is null on the last page."""

    results: list[AuditEntry]
    next_cursor: str | None

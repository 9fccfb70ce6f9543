"""Who is asking: the tenant, what it may do, and whom it is bound to."""

from typing import Final, Literal, NewType
from uuid import UUID

import msgspec

TenantId = NewType("TenantId", UUID)

Scope = Literal["memories:read", "memories:write", "memories:admin", "tenant:admin"]

SCOPES: Final[frozenset[Scope]] = frozenset(("memories:read", "memories:write", "memories:admin", "tenant:admin"))


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller, as every service behind the gateway sees it.

    Attributes:
        tenant: The only tenant this caller can touch.
        scopes: What it may do there.
        key_id: Public part of the key it came with; names it in history and logs.
        request_id: Ties log lines, problems and history of one request together.
    """

    tenant: TenantId
    scopes: frozenset[Scope]
    key_id: str
    request_id: str

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
        bind_user_id: The only user whose memories it can touch; None where it is not bound to one.
        bind_agent_id: The only agent whose memories it can touch; None where it is not bound to one.
        source: Address that the request came from; None where it is not known.
    """

    tenant: TenantId
    scopes: frozenset[Scope]
    key_id: str
    request_id: str
    bind_user_id: str | None = None
    bind_agent_id: str | None = None
    source: str | None = None

    @property
    def bind(self) -> dict[str, str]:
        """The fields of a memory that are given for this caller, with their values; none where it is not bound."""
        given = {"user_id": self.bind_user_id, "agent_id": self.bind_agent_id}
        return {name: value for name, value in given.items() if value is not None}

"""The route by which a key learns about itself."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.admin import Bind
from memplane_core.domain.errors import Unauthorized
from memplane_core.domain.tenancy import Scope
from memplane_core.storage.api_keys import get_api_key
from memplane_core.storage.session import Database
from memplane_core.storage.tenants import get_tenant
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.key_desk import bind_of


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whose key it is and what it may do.

    Attributes:
        key_id: The key's public part.
        expires_at: When it will be refused; null is never.
        bind: The user and agent whose memories alone it can touch; null where it is not bound.
    """

    tenant_id: UUID
    tenant_name: str
    key_id: str
    key_name: str
    scopes: list[Scope]
    bind: Bind | None
    expires_at: datetime | None


@get(
    "/v1/whoami",
    operation_id="whoAmI",
    summary="Whose key this is",
    tags=["System"],
    responses={200: answer(Caller, "The tenant, and the key without its secret."), **problems(401, 503)},
)
async def whoami(request: ServiceRequest, database: NamedDependency[Database]) -> Caller:
    """Tells the key it is asked with. Needs no scope."""
    principal = request.principal
    async with database.tenant(principal.tenant) as connection:
        tenant = await get_tenant(principal.tenant, connection)
        if tenant is None:
            raise Unauthorized("this tenant does not exist any more")
        key = await get_api_key(principal.tenant, connection, key_id=principal.key_id)
    return Caller(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        key_id=key.id,
        key_name=key.name,
        scopes=sorted(principal.scopes),
        bind=bind_of(principal.bind_user_id, principal.bind_agent_id),
        expires_at=key.expires_at,
    )


WHOAMI_ROUTES: Final[Sequence[ControllerRouterHandler]] = (whoami,)

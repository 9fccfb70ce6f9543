"""Admin routes for the keys of a tenant."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.admin import KeyCreate, KeyCreated, KeyPage, KeyRotate
from memplane_core.domain.tenancy import TenantId
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.key_desk import KeyDesk
from memplane_gateway.queries import refuse_unknown
from memplane_gateway.tenants import PageCursor, PageLimit

_TAGS: Final = ["Administration"]
REVOKED: Final = "Revoked; every gateway refuses it within 30 seconds."
ROTATED: Final = "The new key. Its secret is never shown again."


@post(
    "/admin/v1/tenants/{tenant_id:uuid}/keys",
    operation_id="createKey",
    summary="Create an API key",
    tags=_TAGS,
    status_code=201,
    responses={
        201: answer(KeyCreated, "The key. Its secret is never shown again."),
        **problems(400, 401, 404, 409, 413, 422, 503),
    },
)
async def create_key(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    data: JSONBody[KeyCreate],
    *,
    key_desk: NamedDependency[KeyDesk],
    idempotency_key: IdempotencyKey = None,
) -> KeyCreated:
    """Make a key for a tenant, with the scopes that its holder needs."""
    return await key_desk.create(request, TenantId(tenant_id), wanted=data, repeat_key=idempotency_key)


@get(
    "/admin/v1/tenants/{tenant_id:uuid}/keys",
    operation_id="listKeys",
    summary="List API keys",
    tags=_TAGS,
    responses={200: answer(KeyPage, "In the order they were made, without secrets."), **problems(401, 404, 422, 503)},
)
async def list_keys(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    *,
    key_desk: NamedDependency[KeyDesk],
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> KeyPage:
    """Page through a tenant's keys, revoked ones included."""
    refuse_unknown(request, ("limit", "cursor"))
    return await key_desk.page(TenantId(tenant_id), limit=limit, cursor=cursor)


@delete(
    "/admin/v1/tenants/{tenant_id:uuid}/keys/{key_id:str}",
    operation_id="revokeKey",
    summary="Revoke an API key",
    tags=_TAGS,
    status_code=200,  # a default that is not used; with 204 Litestar would not allow the body of a problem
    responses={204: answer(None, REVOKED), **problems(401, 404, 409, 422, 503)},
)
async def revoke_key(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    key_id: FromPath[str],
    *,
    key_desk: NamedDependency[KeyDesk],
    idempotency_key: IdempotencyKey = None,
) -> Response[None]:
    """Make a key invalid for good. Revoking it again changes nothing."""
    return await key_desk.revoke(request, TenantId(tenant_id), key_id, repeat_key=idempotency_key)


@post(
    "/admin/v1/tenants/{tenant_id:uuid}/keys/{key_id:str}/rotate",
    operation_id="rotateKey",
    summary="Replace an API key",
    tags=_TAGS,
    status_code=201,
    responses={201: answer(KeyCreated, ROTATED), **problems(400, 401, 404, 409, 413, 422, 503)},
)
async def rotate_key(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    key_id: FromPath[str],
    data: JSONBody[KeyRotate],
    *,
    key_desk: NamedDependency[KeyDesk],
    idempotency_key: IdempotencyKey = None,
) -> KeyCreated:
    """Make a key in another's place. The old one expires when the overlap ends."""
    return await key_desk.rotate(request, TenantId(tenant_id), key_id, how=data, repeat_key=idempotency_key)


KEY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (create_key, list_keys, revoke_key, rotate_key)

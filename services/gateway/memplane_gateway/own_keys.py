"""Routes by which a tenant keeps its own keys."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.admin import KeyCreate, KeyCreated, KeyPage, KeyRotate
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.key_desk import KeyDesk
from memplane_gateway.keys import REVOKED, ROTATED
from memplane_gateway.queries import refuse_unknown
from memplane_gateway.tenants import PageCursor, PageLimit

_TAGS: Final = ["Tenant"]


@post(
    "/v1/keys",
    operation_id="createOwnKey",
    summary="Create a key",
    tags=_TAGS,
    status_code=201,
    responses={
        201: answer(KeyCreated, "The key. Its secret is never shown again."),
        **problems(400, 401, 403, 404, 409, 413, 422, 503),
    },
)
async def create_own_key(
    request: ServiceRequest,
    data: JSONBody[KeyCreate],
    *,
    key_desk: NamedDependency[KeyDesk],
    idempotency_key: IdempotencyKey = None,
) -> KeyCreated:
    """Make another key of your tenant, with no scope that yours does not have, and no longer life.

    Needs the scope `tenant:admin`.
    """
    principal = request.require("tenant:admin")
    return await key_desk.create(request, principal.tenant, wanted=data, by=principal, repeat_key=idempotency_key)


@get(
    "/v1/keys",
    operation_id="listOwnKeys",
    summary="List your keys",
    tags=_TAGS,
    responses={
        200: answer(KeyPage, "In the order they were made, without secrets."),
        **problems(401, 403, 404, 422, 503),
    },
)
async def list_own_keys(
    request: ServiceRequest,
    *,
    key_desk: NamedDependency[KeyDesk],
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> KeyPage:
    """Page through your tenant's keys, revoked ones included.

    Needs the scope `tenant:admin`.
    """
    principal = request.require("tenant:admin")
    refuse_unknown(request, ("limit", "cursor"))
    return await key_desk.page(principal.tenant, limit=limit, cursor=cursor)


@delete(
    "/v1/keys/{key_id:str}",
    operation_id="revokeOwnKey",
    summary="Revoke a key",
    tags=_TAGS,
    status_code=200,  # a default that is not used; with 204 Litestar would not allow the body of a problem
    responses={204: answer(None, REVOKED), **problems(401, 403, 404, 409, 422, 503)},
)
async def revoke_own_key(
    request: ServiceRequest,
    key_id: FromPath[str],
    *,
    key_desk: NamedDependency[KeyDesk],
    idempotency_key: IdempotencyKey = None,
) -> Response[None]:
    """Make a key of your tenant invalid for good, your own too. Revoking it again changes nothing.

    Needs the scope `tenant:admin`.
    """
    principal = request.require("tenant:admin")
    return await key_desk.revoke(request, principal.tenant, key_id, repeat_key=idempotency_key)


@post(
    "/v1/keys/{key_id:str}/rotate",
    operation_id="rotateOwnKey",
    summary="Replace a key",
    tags=_TAGS,
    status_code=201,
    responses={201: answer(KeyCreated, ROTATED), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def rotate_own_key(
    request: ServiceRequest,
    key_id: FromPath[str],
    data: JSONBody[KeyRotate],
    *,
    key_desk: NamedDependency[KeyDesk],
    idempotency_key: IdempotencyKey = None,
) -> KeyCreated:
    """Make a key in another's place, also in that of the key you ask with. The old one expires when the overlap ends.

    Needs the scope `tenant:admin`, and every scope of the key.
    """
    principal = request.require("tenant:admin")
    return await key_desk.rotate(request, principal.tenant, key_id, how=data, by=principal, repeat_key=idempotency_key)


OWN_KEY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    create_own_key,
    list_own_keys,
    revoke_own_key,
    rotate_own_key,
)

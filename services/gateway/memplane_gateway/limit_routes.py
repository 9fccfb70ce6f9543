"""Admin routes for the limits of a tenant and of its keys. A tenant cannot set its own."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from litestar import Response, get, patch, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.checks import changed_fields
from memplane_core.contracts.limits import (
    KeyLimits,
    KeyLimitsPatch,
    KeyLimitsView,
    TenantLimits,
    TenantLimitsPatch,
    TenantLimitsView,
)
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import limits as stored
from memplane_core.storage.idempotency import Effect
from memplane_core.storage.session import Connection, Database
from memplane_core.web.repeats import Once
from memplane_core.web.request import ServiceRequest
from memplane_gateway.deeds import Act, carry_out
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.key_desk import check_key_id
from memplane_gateway.limits import LimitDirectory

_TAGS: Final = ["Administration"]
_TENANT: Final = "/admin/v1/tenants/{tenant_id:uuid}/limits"
_KEY: Final = "/admin/v1/tenants/{tenant_id:uuid}/keys/{key_id:str}/limits"
_NOW: Final = "As they were set, and as they hold."
_SET: Final = "What holds from now on; every gateway knows it within a few seconds."


@get(
    _TENANT,
    operation_id="getTenantLimits",
    summary="Get a tenant's limits",
    tags=_TAGS,
    responses={200: answer(TenantLimitsView, _NOW), **problems(401, 404, 503)},
)
async def get_tenant_limits(
    tenant_id: FromPath[UUID], database: NamedDependency[Database], limit_directory: NamedDependency[LimitDirectory]
) -> TenantLimitsView:
    """What a tenant may do and have."""
    return await _tenant_view(TenantId(tenant_id), database, limit_directory)


@put(
    _TENANT,
    operation_id="setTenantLimits",
    summary="Set a tenant's limits",
    tags=_TAGS,
    responses={200: answer(TenantLimitsView, _SET), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def set_tenant_limits(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    data: JSONBody[TenantLimits],
    *,
    database: NamedDependency[Database],
    limit_directory: NamedDependency[LimitDirectory],
    idempotency_key: IdempotencyKey = None,
) -> Response[TenantLimitsView]:
    """Set all limits of a tenant. What is not named has the installation's default.

    A quota set below what is used takes nothing away; nothing more can be added.
    """
    tenant = TenantId(tenant_id)

    async def change(connection: Connection) -> Effect:
        await stored.set_tenant_limits(tenant, connection, data)
        return Effect(str(tenant))

    changed = await _carry_out(request, tenant, database, limit_directory, key=idempotency_key, act=change)
    return Response(await _tenant_view(tenant, database, limit_directory), headers=changed.headers)


@patch(
    _TENANT,
    operation_id="updateTenantLimits",
    summary="Change a tenant's limits",
    tags=_TAGS,
    responses={200: answer(TenantLimitsView, _SET), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def update_tenant_limits(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    data: JSONBody[TenantLimitsPatch],
    *,
    database: NamedDependency[Database],
    limit_directory: NamedDependency[LimitDirectory],
    idempotency_key: IdempotencyKey = None,
) -> Response[TenantLimitsView]:
    """Set what is named, and leave the rest; null goes back to the installation's default."""
    tenant = TenantId(tenant_id)
    changes = changed_fields(data, noun="limit")

    async def change(connection: Connection) -> Effect:
        await stored.patch_tenant_limits(tenant, connection, changes)
        return Effect(str(tenant))

    changed = await _carry_out(
        request, tenant, database, limit_directory, key=idempotency_key, act=change, fields=sorted(changes)
    )
    return Response(await _tenant_view(tenant, database, limit_directory), headers=changed.headers)


@get(
    _KEY,
    operation_id="getKeyLimits",
    summary="Get a key's limits",
    tags=_TAGS,
    responses={200: answer(KeyLimitsView, "As they were set."), **problems(401, 404, 503)},
)
async def get_key_limits(
    tenant_id: FromPath[UUID], key_id: FromPath[str], database: NamedDependency[Database]
) -> KeyLimitsView:
    """What a key may do, on top of its tenant's limits."""
    return await _key_view(TenantId(tenant_id), database, key_id)


@put(
    _KEY,
    operation_id="setKeyLimits",
    summary="Set a key's limits",
    tags=_TAGS,
    responses={200: answer(KeyLimitsView, _SET), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def set_key_limits(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    key_id: FromPath[str],
    data: JSONBody[KeyLimits],
    *,
    database: NamedDependency[Database],
    limit_directory: NamedDependency[LimitDirectory],
    idempotency_key: IdempotencyKey = None,
) -> Response[KeyLimitsView]:
    """Set all limits of a key. They come on top of its tenant's, and cannot lift those."""
    tenant = TenantId(tenant_id)

    async def change(connection: Connection) -> Effect:
        check_key_id(key_id)
        await stored.set_key_limits(tenant, connection, key_id=key_id, limits=data)
        return Effect(key_id)

    changed = await _carry_out(request, tenant, database, limit_directory, key=idempotency_key, act=change)
    return Response(await _key_view(tenant, database, key_id), headers=changed.headers)


@patch(
    _KEY,
    operation_id="updateKeyLimits",
    summary="Change a key's limits",
    tags=_TAGS,
    responses={200: answer(KeyLimitsView, _SET), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def update_key_limits(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    key_id: FromPath[str],
    data: JSONBody[KeyLimitsPatch],
    *,
    database: NamedDependency[Database],
    limit_directory: NamedDependency[LimitDirectory],
    idempotency_key: IdempotencyKey = None,
) -> Response[KeyLimitsView]:
    """Set what is named, and leave the rest; null takes a limit away."""
    tenant = TenantId(tenant_id)
    changes = changed_fields(data, noun="limit")

    async def change(connection: Connection) -> Effect:
        check_key_id(key_id)
        await stored.patch_key_limits(tenant, connection, key_id=key_id, changes=changes)
        return Effect(key_id)

    changed = await _carry_out(
        request, tenant, database, limit_directory, key=idempotency_key, act=change, fields=sorted(changes)
    )
    return Response(await _key_view(tenant, database, key_id), headers=changed.headers)


async def _carry_out(
    request: ServiceRequest,
    tenant: TenantId,
    database: Database,
    directory: LimitDirectory,
    *,
    key: str | None,
    act: Act,
    fields: Sequence[str] | None = None,
) -> Once[Effect]:
    """Change limits once; this gateway knows it at once."""
    details = None if fields is None else {"fields": fields}
    changed = await carry_out(request, tenant, database, key=key, act=act, details=details)
    directory.forget(tenant)
    return changed


async def _tenant_view(tenant: TenantId, database: Database, directory: LimitDirectory) -> TenantLimitsView:
    async with database.tenant(tenant) as connection:
        limits = await stored.tenant_limits(tenant, connection)
    return TenantLimitsView(tenant_id=tenant, limits=limits, effective=stored.effective(limits, directory.defaults))


async def _key_view(tenant: TenantId, database: Database, key_id: str) -> KeyLimitsView:
    check_key_id(key_id)
    async with database.tenant(tenant) as connection:
        limits = await stored.key_limits(tenant, connection, key_id=key_id)
    return KeyLimitsView(tenant_id=tenant, key_id=key_id, limits=limits)


LIMIT_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    get_tenant_limits,
    set_tenant_limits,
    update_tenant_limits,
    get_key_limits,
    set_key_limits,
    update_key_limits,
)

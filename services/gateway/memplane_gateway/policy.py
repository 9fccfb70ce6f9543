"""Routes for a tenant's policy: its own, and the same for whoever operates the installation."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from litestar import Response, get, patch
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.policy import Policy
from memplane_core.contracts.presets import PolicyChange, policy_changes
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.idempotency import Effect
from memplane_core.storage.policies import change_policy, policy_of
from memplane_core.storage.session import Connection, Database
from memplane_core.web.request import ServiceRequest
from memplane_gateway.deeds import carry_out
from memplane_gateway.documents import answer, problems
from memplane_gateway.idempotency import IdempotencyKey

_TAGS: Final = ["Tenant"]
_ADMIN_TAGS: Final = ["Administration"]
_NOW: Final = "What holds, defaults filled in."
_CHANGED: Final = "What holds from now on; every service knows it within a few seconds."


@get(
    "/v1/policy",
    operation_id="getPolicy",
    summary="Get your policy",
    tags=_TAGS,
    responses={200: answer(Policy, _NOW), **problems(401, 403, 404, 503)},
)
async def get_policy(request: ServiceRequest, database: NamedDependency[Database]) -> Policy:
    """How your memories are kept and ranked where a request does not say.

    Needs the scope `tenant:admin`.
    """
    return await _get(request.require("tenant:admin").tenant, database)


@patch(
    "/v1/policy",
    operation_id="updatePolicy",
    summary="Change your policy",
    tags=_TAGS,
    responses={200: answer(Policy, _CHANGED), **problems(400, 401, 403, 404, 409, 413, 422, 503)},
)
async def update_policy(
    request: ServiceRequest,
    data: JSONBody[PolicyChange],
    *,
    database: NamedDependency[Database],
    idempotency_key: IdempotencyKey = None,
) -> Response[Policy]:
    """Set what is named, and leave the rest; or begin from a policy known by name, `like` which yours is to be.

    Memories that are there already stay as they are.

    Needs the scope `tenant:admin`.
    """
    tenant = request.require("tenant:admin").tenant
    return await _change(request, tenant, database, wanted=data, key=idempotency_key)


@get(
    "/admin/v1/tenants/{tenant_id:uuid}/policy",
    operation_id="getTenantPolicy",
    summary="Get a tenant's policy",
    tags=_ADMIN_TAGS,
    responses={200: answer(Policy, _NOW), **problems(401, 404, 503)},
)
async def get_tenant_policy(tenant_id: FromPath[UUID], database: NamedDependency[Database]) -> Policy:
    """How a tenant's memories are kept and ranked where a request does not say."""
    return await _get(TenantId(tenant_id), database)


@patch(
    "/admin/v1/tenants/{tenant_id:uuid}/policy",
    operation_id="updateTenantPolicy",
    summary="Change a tenant's policy",
    tags=_ADMIN_TAGS,
    responses={200: answer(Policy, _CHANGED), **problems(400, 401, 404, 409, 413, 422, 503)},
)
async def update_tenant_policy(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    data: JSONBody[PolicyChange],
    *,
    database: NamedDependency[Database],
    idempotency_key: IdempotencyKey = None,
) -> Response[Policy]:
    """Set what is named, and leave the rest. Memories that are there already stay as they are."""
    return await _change(request, TenantId(tenant_id), database, wanted=data, key=idempotency_key)


async def _get(tenant: TenantId, database: Database) -> Policy:
    async with database.tenant(tenant) as connection:
        return await policy_of(tenant, connection)


async def _change(
    request: ServiceRequest, tenant: TenantId, database: Database, *, wanted: PolicyChange, key: str | None
) -> Response[Policy]:
    changes = policy_changes(wanted)

    async def change(connection: Connection) -> Effect:
        await change_policy(tenant, connection, changes=changes)
        return Effect(str(tenant))

    changed = await carry_out(request, tenant, database, key=key, act=change, details={"fields": sorted(changes)})
    return Response(await _get(tenant, database), headers=changed.headers)


POLICY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    get_policy,
    update_policy,
    get_tenant_policy,
    update_tenant_policy,
)

"""Admin routes for the keys of a tenant."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.admin import KeyCreate, KeyCreated, KeyPage, KeyView
from memplane_core.domain.errors import NotFound, invalid
from memplane_core.domain.tenancy import TenantId
from memplane_core.security.keys import Keyring
from memplane_core.storage import api_keys
from memplane_core.storage.api_keys import StoredKey
from memplane_core.storage.session import Database
from memplane_core.storage.tenants import get_tenant
from memplane_core.web.request import ServiceRequest
from memplane_gateway.auth import KeyDirectory
from memplane_gateway.documents import answer, problems
from memplane_gateway.queries import refuse_unknown
from memplane_gateway.tenants import PageCursor, PageLimit, check_name

_TAGS: Final = ["Administration"]


@post(
    "/admin/v1/tenants/{tenant_id:uuid}/keys",
    operation_id="createKey",
    summary="Create an API key",
    tags=_TAGS,
    status_code=201,
    responses={
        201: answer(KeyCreated, "The key. Its secret is never shown again."),
        **problems(400, 401, 404, 413, 422, 503),
    },
)
async def create_key(
    tenant_id: FromPath[UUID],
    data: JSONBody[KeyCreate],
    *,
    database: NamedDependency[Database],
    keyring: NamedDependency[Keyring],
) -> KeyCreated:
    """Make a key for a tenant, with the scopes that its holder needs."""
    check_name(data.name)
    expires_at = _expiry(data.expires_at)
    tenant = TenantId(tenant_id)
    key = keyring.issue()
    async with database.tenant(tenant) as connection:
        if await get_tenant(tenant, connection) is None:
            raise _no_tenant(tenant)
        stored = await api_keys.create_api_key(
            tenant,
            connection,
            key_id=key.id,
            name=data.name,
            digest=key.digest,
            scopes=frozenset(data.scopes),
            expires_at=expires_at,
        )
    view = _view(stored)
    return KeyCreated(
        id=view.id,
        name=view.name,
        scopes=view.scopes,
        created_at=view.created_at,
        expires_at=view.expires_at,
        revoked_at=view.revoked_at,
        key=key.text,
    )


def _expiry(given: datetime | None) -> datetime | None:
    if given is None:
        return None
    moment = given.replace(tzinfo=UTC) if given.tzinfo is None else given
    if moment <= datetime.now(UTC):
        raise invalid("/expires_at", "must lie in the future")
    return moment


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
    database: NamedDependency[Database],
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> KeyPage:
    """Page through a tenant's keys, revoked ones included."""
    refuse_unknown(request, ("limit", "cursor"))
    tenant = TenantId(tenant_id)
    async with database.tenant(tenant) as connection:
        if await get_tenant(tenant, connection) is None:
            raise _no_tenant(tenant)
        found = await api_keys.list_api_keys(tenant, connection, after=cursor, limit=limit + 1)
    page = [_view(key) for key in found[:limit]]
    return KeyPage(results=page, next_cursor=page[-1].id if len(found) > limit else None)


@delete(
    "/admin/v1/tenants/{tenant_id:uuid}/keys/{key_id:str}",
    operation_id="revokeKey",
    summary="Revoke an API key",
    tags=_TAGS,
    status_code=204,
    responses={204: answer(None, "Revoked; every gateway refuses it within 30 seconds."), **problems(401, 404, 503)},
)
async def revoke_key(
    tenant_id: FromPath[UUID],
    key_id: FromPath[str],
    *,
    database: NamedDependency[Database],
    directory: NamedDependency[KeyDirectory],
) -> None:
    """Make a key invalid for good. Revoking it again changes nothing."""
    if not key_id.isalnum() or not key_id.isascii():
        raise NotFound(f"the tenant has no key with the id {key_id!r}")
    tenant = TenantId(tenant_id)
    async with database.tenant(tenant) as connection:
        await api_keys.revoke_api_key(tenant, connection, key_id=key_id)
    directory.forget(key_id)


def _no_tenant(tenant: TenantId) -> NotFound:
    return NotFound(f"there is no tenant with the id {str(tenant)!r}")


def _view(key: StoredKey) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        scopes=sorted(key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )


KEY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (create_key, list_keys, revoke_key)

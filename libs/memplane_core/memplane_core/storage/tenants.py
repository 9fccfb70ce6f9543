"""Tenants, and the first generation of each."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from memplane_core.domain.errors import Conflict, NotFound
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Row


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A living tenant."""

    id: TenantId
    name: str
    created_at: datetime
    active_generation: int


async def create_tenant(tenant: TenantId, connection: Connection, *, name: str, generation: Generation) -> TenantRecord:
    """Store a new tenant together with the generation that its memories will be indexed in.

    Args:
        tenant: Its id, a new UUIDv7.
        connection: Inside a transaction of that tenant.
        name: Unique among living tenants.
        generation: Number 1 of that tenant.

    Raises:
        Conflict: A living tenant has that name.
    """
    try:
        row = await connection.fetchrow(
            "INSERT INTO tenant (id, name, active_generation) VALUES ($1, $2, $3)"
            " RETURNING id, name, created_at, active_generation",
            tenant,
            name,
            generation.number,
        )
    except asyncpg.UniqueViolationError:
        raise Conflict(f"there is a tenant named {name!r} already") from None
    await connection.execute(
        "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params, state)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7)",
        tenant,
        generation.number,
        generation.model,
        generation.dim,
        generation.index_type,
        generation.index_params,
        generation.state,
    )
    assert row is not None
    return _record(row)


async def get_tenant(tenant: TenantId, connection: Connection) -> TenantRecord | None:
    """The tenant, or None where there is none of that id, or no more. `connection` is inside its transaction."""
    row = await connection.fetchrow(
        "SELECT id, name, created_at, active_generation FROM tenant WHERE id = $1 AND deleted_at IS NULL", tenant
    )
    return None if row is None else _record(row)


async def require_tenant(tenant: TenantId, connection: Connection) -> TenantRecord:
    """The tenant. Raises NotFound where there is none of that id, or no more."""
    found = await get_tenant(tenant, connection)
    if found is None:
        raise no_tenant(tenant)
    return found


def no_tenant(tenant: TenantId) -> NotFound:
    """What is raised where there is no such tenant, or no more."""
    return NotFound(f"there is no tenant with the id {str(tenant)!r}")


async def list_tenants(connection: Connection, *, after: UUID | None, limit: int) -> Sequence[TenantRecord]:
    """Living tenants in the order they were made, from the one after `after`; of a transaction without a tenant."""
    rows = await connection.fetch(
        "SELECT id, name, created_at, active_generation FROM list_tenants($1, $2)", after, limit
    )
    return [_record(row) for row in rows]


def _record(row: Row) -> TenantRecord:
    return TenantRecord(
        id=TenantId(UUID(int=row["id"].int)),
        name=row["name"],
        created_at=row["created_at"],
        active_generation=row["active_generation"],
    )

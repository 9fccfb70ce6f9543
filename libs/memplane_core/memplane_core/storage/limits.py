"""Limits of tenants and keys as they are stored, and how much a tenant has stored."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from memplane_core.contracts.limits import EffectiveLimits, KeyLimits, TenantLimits
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.api_keys import no_key
from memplane_core.storage.session import Connection
from memplane_core.storage.tenants import no_tenant


class StoredCount(msgspec.Struct, frozen=True):
    """What counts against the quota `stored_memories`.

    Attributes:
        total: Active memories, and what sessions hold.
        held: What sessions hold alone.
    """

    total: int
    held: int


class Recount(msgspec.Struct, frozen=True):
    """How much is stored, and how much of it had been counted."""

    stored: StoredCount
    counted: StoredCount


class KeyAndTenant(msgspec.Struct, frozen=True):
    """What holds for a request: the limits of its tenant and those of its key."""

    tenant: EffectiveLimits
    key: KeyLimits


def effective(limits: TenantLimits, defaults: EffectiveLimits) -> EffectiveLimits:
    """What holds for a tenant: its own limits, and the installation's where it has none."""
    found: dict[str, Any] = {}
    for name in TenantLimits.__struct_fields__:
        own: object = getattr(limits, name)
        found[name] = getattr(defaults, name) if own is None else None if own == "unlimited" else own
    return EffectiveLimits(**found)


async def tenant_limits(tenant: TenantId, connection: Connection) -> TenantLimits:
    """As they were set. Raises NotFound where there is no such tenant, or no more."""
    row = await connection.fetchrow("SELECT limits FROM tenant WHERE id = $1 AND deleted_at IS NULL", tenant)
    if row is None:
        raise no_tenant(tenant)
    return msgspec.convert(row["limits"], TenantLimits)


async def set_tenant_limits(tenant: TenantId, connection: Connection, limits: TenantLimits) -> None:
    """Put `limits` in place of what was set. Raises NotFound where there is no such tenant, or no more."""
    found = await connection.fetchval(
        "UPDATE tenant SET limits = $2 WHERE id = $1 AND deleted_at IS NULL RETURNING id", tenant, _record(limits)
    )
    if found is None:
        raise no_tenant(tenant)


async def patch_tenant_limits(
    tenant: TenantId, connection: Connection, changes: Mapping[str, object | None]
) -> TenantLimits:
    """Set or, by None, unset the named limits; of two who do so at once both are heard. Raises NotFound."""
    row = await connection.fetchrow(
        "SELECT limits FROM tenant WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE", tenant
    )
    if row is None:
        raise no_tenant(tenant)
    limits = msgspec.structs.replace(msgspec.convert(row["limits"], TenantLimits), **changes)
    await set_tenant_limits(tenant, connection, limits)
    return limits


async def key_limits(tenant: TenantId, connection: Connection, *, key_id: str, lock: bool = False) -> KeyLimits:
    """As they were set. Raises NotFound where the tenant has no such key."""
    row = await connection.fetchrow(
        f"SELECT limits FROM api_key WHERE tenant_id = $1 AND id = $2 {'FOR NO KEY UPDATE' if lock else ''}",
        tenant,
        key_id,
    )
    if row is None:
        raise no_key(key_id)
    return msgspec.convert(row["limits"], KeyLimits)


async def set_key_limits(tenant: TenantId, connection: Connection, *, key_id: str, limits: KeyLimits) -> None:
    """Put `limits` in place of what was set. Raises NotFound where the tenant has no such key."""
    found = await connection.fetchval(
        "UPDATE api_key SET limits = $3 WHERE tenant_id = $1 AND id = $2 RETURNING id", tenant, key_id, _record(limits)
    )
    if found is None:
        raise no_key(key_id)


async def patch_key_limits(
    tenant: TenantId, connection: Connection, *, key_id: str, changes: Mapping[str, object | None]
) -> KeyLimits:
    """Set or, by None, unset the named limits. Raises NotFound where the tenant has no such key."""
    before = await key_limits(tenant, connection, key_id=key_id, lock=True)
    limits = msgspec.structs.replace(before, **changes)
    await set_key_limits(tenant, connection, key_id=key_id, limits=limits)
    return limits


async def limits_of_key(
    tenant: TenantId, connection: Connection, *, key_id: str, defaults: EffectiveLimits
) -> KeyAndTenant:
    """What holds for requests of a key; nothing but the defaults where it or its tenant is gone."""
    row = await connection.fetchrow(
        """
        SELECT t.limits AS tenant, k.limits AS key FROM tenant t
        LEFT JOIN api_key k ON k.tenant_id = t.id AND k.id = $2 WHERE t.id = $1
        """,
        tenant,
        key_id,
    )
    if row is None:
        return KeyAndTenant(defaults, KeyLimits())
    own = msgspec.convert(row["tenant"], TenantLimits)
    return KeyAndTenant(effective(own, defaults), msgspec.convert(row["key"] or {}, KeyLimits))


async def stored_count(tenant: TenantId, connection: Connection) -> StoredCount:
    """How much the tenant has stored."""
    row = await connection.fetchrow(
        "SELECT coalesce(sum(stored), 0)::bigint AS total, coalesce(sum(held), 0)::bigint AS held"
        " FROM memory_count WHERE tenant_id = $1",
        tenant,
    )
    assert row is not None
    return StoredCount(row["total"], row["held"])


async def recount_memories(tenant: TenantId, connection: Connection, *, mend: bool = True) -> Recount:
    """Count the tenant's active memories and held observations one by one, and set the count right where it is not.

    Both are read in one snapshot, in which they agree whatever is under way, so that this needs no lock.
    """
    row = await connection.fetchrow(
        """
        WITH held AS MATERIALIZED (
            SELECT count(*) AS n FROM observation WHERE tenant_id = $1
        ), active AS MATERIALIZED (
            SELECT count(*) AS n FROM memory WHERE tenant_id = $1 AND state = 'active'
        ), truth AS MATERIALIZED (
            SELECT active.n + held.n AS total, held.n AS held FROM active, held
        ), counted AS MATERIALIZED (
            SELECT coalesce(sum(stored), 0)::bigint AS total, coalesce(sum(held), 0)::bigint AS held
            FROM memory_count WHERE tenant_id = $1
        ), mended AS (
            INSERT INTO memory_count (tenant_id, stored, held)
            SELECT $1, t.total - c.total, t.held - c.held FROM truth t, counted c
            WHERE $2 AND (t.total, t.held) <> (c.total, c.held)
        )
        SELECT t.total, t.held, c.total AS counted, c.held AS counted_held FROM truth t, counted c
        """,
        tenant,
        mend,
    )
    assert row is not None
    return Recount(
        stored=StoredCount(row["total"], row["held"]),
        counted=StoredCount(row["counted"], row["counted_held"]),
    )


def _record(limits: TenantLimits | KeyLimits) -> dict[str, Any]:
    return cast("dict[str, Any]", msgspec.to_builtins(limits))

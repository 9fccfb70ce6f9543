"""API keys as they are stored: without their secrets."""

from collections.abc import Sequence, Set
from datetime import datetime
from uuid import UUID

import msgspec

from memplane_core.domain.errors import NotFound, invalid
from memplane_core.domain.tenancy import SCOPES, Scope, TenantId
from memplane_core.storage.session import Connection, Row


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a living tenant, valid or not. `digest` is what `security.keys` made of its secret."""

    tenant: TenantId
    id: str
    name: str
    digest: bytes
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


async def create_api_key(
    tenant: TenantId,
    connection: Connection,
    *,
    key_id: str,
    name: str,
    digest: bytes,
    scopes: Set[Scope],
    expires_at: datetime | None,
) -> StoredKey:
    """Store a new key of `tenant`, which must exist."""
    row = await connection.fetchrow(
        "INSERT INTO api_key (tenant_id, id, name, digest, scopes, expires_at) VALUES ($1, $2, $3, $4, $5, $6)"
        " RETURNING *",
        tenant,
        key_id,
        name,
        digest,
        sorted(scopes),
        expires_at,
    )
    assert row is not None
    return _record(row)


async def list_api_keys(
    tenant: TenantId, connection: Connection, *, after: str | None, limit: int
) -> Sequence[StoredKey]:
    """Keys of `tenant` in the order they were made, from the one after the key with the id `after`.

    Raises:
        InvalidRequest: `after` is no key of the tenant.
    """
    since: datetime | None = None
    if after is not None:
        since = await connection.fetchval(
            "SELECT created_at FROM api_key WHERE tenant_id = $1 AND id = $2", tenant, after
        )
        if since is None:
            raise invalid("cursor", "is none that this service has given out")
    rows = await connection.fetch(
        "SELECT * FROM api_key WHERE tenant_id = $1"
        " AND ($2::timestamptz IS NULL OR (created_at, id) > ($2, $3)) ORDER BY created_at, id LIMIT $4",
        tenant,
        since,
        after,
        limit,
    )
    return [_record(row) for row in rows]


async def revoke_api_key(tenant: TenantId, connection: Connection, *, key_id: str) -> None:
    """Make a key invalid for good; one that is revoked stays so.

    Raises:
        NotFound: The tenant has no such key.
    """
    found = await connection.fetchval(
        "UPDATE api_key SET revoked_at = COALESCE(revoked_at, clock_timestamp())"
        " WHERE tenant_id = $1 AND id = $2 RETURNING id",
        tenant,
        key_id,
    )
    if found is None:
        raise NotFound(f"the tenant has no key with the id {key_id!r}")


async def find_api_key(connection: Connection, *, key_id: str) -> StoredKey | None:
    """The key with that id, whosever it is; of a transaction without a tenant. None: there is none."""
    row = await connection.fetchrow("SELECT * FROM find_api_key($1)", key_id)
    return None if row is None else _record(row)


def _record(row: Row) -> StoredKey:
    return StoredKey(
        tenant=TenantId(UUID(int=row["tenant_id"].int)),
        id=row["id"],
        name=row["name"],
        digest=bytes(row["digest"]),
        scopes=frozenset(scope for scope in SCOPES if scope in row["scopes"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )

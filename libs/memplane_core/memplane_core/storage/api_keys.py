"""API keys as they are stored: without their secrets."""

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from uuid import UUID

import msgspec

from memplane_core.domain.errors import Conflict, NotFound, invalid
from memplane_core.domain.tenancy import SCOPES, Scope, TenantId
from memplane_core.storage.session import Connection, Row


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a living tenant, valid or not.

    Attributes:
        digest: What `security.keys` made of its secret.
        bind_user_id: The only user whose memories it can touch; None for all.
        bind_agent_id: The only agent whose memories it can touch; None for all.
        last_used_at: At most some minutes behind.
        replaced_by: Id of the key that a rotation put in its place.
    """

    tenant: TenantId
    id: str
    name: str
    digest: bytes
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    bind_user_id: str | None = None
    bind_agent_id: str | None = None
    last_used_at: datetime | None = None
    replaced_by: str | None = None


async def create_api_key(
    tenant: TenantId,
    connection: Connection,
    *,
    key_id: str,
    name: str,
    digest: bytes,
    scopes: Set[Scope],
    expires_at: datetime | None,
    bind_user_id: str | None = None,
    bind_agent_id: str | None = None,
    made_by: str | None = None,
) -> StoredKey:
    """Store a new key of `tenant`, which must exist. It has the limits of the key `made_by`, if one is named.

    Raises:
        Conflict: There is a key with this id, of whatever tenant.
    """
    row = await connection.fetchrow(
        """
        INSERT INTO api_key (tenant_id, id, name, digest, scopes, expires_at, bind_user_id, bind_agent_id, limits)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8,
            coalesce((SELECT limits FROM api_key WHERE tenant_id = $1 AND id = $9), '{}'))
        ON CONFLICT (id) DO NOTHING
        RETURNING *
        """,
        tenant,
        key_id,
        name,
        digest,
        sorted(scopes),
        expires_at,
        bind_user_id,
        bind_agent_id,
        made_by,
    )
    if row is None:
        raise Conflict(f"there is a key with the id {key_id!r} already", id=key_id)
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


async def get_api_key(tenant: TenantId, connection: Connection, *, key_id: str, lock: bool = False) -> StoredKey:
    """A key of `tenant`, valid or not; with `lock` nobody else changes it until the transaction ends.

    Raises:
        NotFound: The tenant has no such key.
    """
    row = await connection.fetchrow(
        f"SELECT * FROM api_key WHERE tenant_id = $1 AND id = $2{' FOR NO KEY UPDATE' if lock else ''}", tenant, key_id
    )
    if row is None:
        raise no_key(key_id)
    return _record(row)


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
        raise no_key(key_id)


async def replace_api_key(
    tenant: TenantId,
    connection: Connection,
    old: StoredKey,
    *,
    key_id: str,
    digest: bytes,
    overlap_s: int,
    expires_at: datetime | None,
) -> StoredKey:
    """Store a key like `old`, which expires once both have been valid for a while.

    Args:
        tenant: Whose keys they are.
        connection: Inside a transaction of that tenant.
        old: Locked by it.
        key_id: Of the new one.
        digest: Of the new one.
        overlap_s: Seconds after which the old one expires, if it does not do so before.
        expires_at: When the new one does.

    Raises:
        Conflict: `old` is revoked, expired or replaced already.
    """
    valid = await connection.fetchval(
        """
        UPDATE api_key SET replaced_by = $3,
            expires_at = least(expires_at, clock_timestamp() + make_interval(secs => $4))
        WHERE tenant_id = $1 AND id = $2 AND revoked_at IS NULL AND replaced_by IS NULL
          AND (expires_at IS NULL OR expires_at > clock_timestamp())
        RETURNING true
        """,
        tenant,
        old.id,
        key_id,
        float(overlap_s),
    )
    if not valid:
        if old.replaced_by is not None:
            raise Conflict(f"the key was replaced by {old.replaced_by!r} already: rotate that one")
        raise Conflict("the key is not valid any more: create a new one")
    return await create_api_key(
        tenant,
        connection,
        key_id=key_id,
        name=old.name,
        digest=digest,
        scopes=old.scopes,
        expires_at=expires_at,
        bind_user_id=old.bind_user_id,
        bind_agent_id=old.bind_agent_id,
        made_by=old.id,
    )


async def find_api_key(connection: Connection, *, key_id: str) -> StoredKey | None:
    """The key with that id, whosever it is; of a transaction without a tenant. None: there is none."""
    row = await connection.fetchrow("SELECT * FROM find_api_key($1)", key_id)
    return None if row is None else _record(row)


async def mark_keys_used(connection: Connection, *, uses: Mapping[str, datetime]) -> None:
    """Remember when keys, whosever they are, were last used; of a transaction without a tenant.

    What another transaction holds right now is left out, and what is older than what is known.
    """
    await connection.execute("SELECT mark_keys_used($1, $2)", list(uses), list(uses.values()))


def no_key(key_id: str) -> NotFound:
    """What is raised where the tenant has no such key."""
    return NotFound(f"the tenant has no key with the id {key_id!r}")


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
        bind_user_id=row["bind_user_id"],
        bind_agent_id=row["bind_agent_id"],
        last_used_at=row["last_used_at"],
        replaced_by=row["replaced_by"],
    )

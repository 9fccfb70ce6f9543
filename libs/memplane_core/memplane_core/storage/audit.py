"""What was done by whom. Rows are added in the transaction of what they tell of, and nobody can change them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from memplane_core.contracts.audit import AuditEntry, AuditResult
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Row


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for; None is whatever it is.

    Attributes:
        since: Not before.
        until: Before.
    """

    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class AuditPlace(msgspec.Struct, frozen=True):
    """Where an entry stands among the others."""

    at: datetime
    id: UUID


async def record(
    connection: Connection,
    *,
    tenant: TenantId | None,
    actor: str,
    action: str,
    target: str,
    result: AuditResult,
    source: str | None,
    request_id: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Tell what is done in this transaction.

    Args:
        connection: Inside a transaction of `tenant`, or of no tenant where that is None.
        tenant: Whose it is done to.
        actor: Id of an API key, `admin` or `ops`.
        action: Operation id of the route.
        target: Id of what it is done to.
        result: `refused` where it is not done.
        source: Address that the request came from.
        request_id: Of the request.
        details: Ids, names of fields and numbers. Never content, never a secret.
    """
    await connection.execute(
        """
        INSERT INTO audit (tenant_id, actor, action, target, result, source, request_id, details)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        """,
        tenant,
        actor,
        action,
        target,
        result,
        source,
        request_id,
        dict(details or {}),
    )


async def audit_of(
    tenant: TenantId, connection: Connection, *, query: AuditQuery, before: AuditPlace | None, limit: int
) -> Sequence[AuditEntry]:
    """A tenant's own entries, the newest first, from the one after `before` on."""
    rows = await connection.fetch(
        """
        SELECT * FROM audit
        WHERE tenant_id = $1 AND ($2::text IS NULL OR actor = $2) AND ($3::text IS NULL OR action = $3)
          AND ($4::timestamptz IS NULL OR at >= $4) AND ($5::timestamptz IS NULL OR at < $5)
          AND ($6::timestamptz IS NULL OR (at, id) < ($6, $7::uuid))
        ORDER BY at DESC, id DESC LIMIT $8
        """,
        tenant,
        *_narrowed(query, before, limit=limit),
    )
    return [_entry(row) for row in rows]


async def audit_of_all(
    connection: Connection, *, tenant: TenantId | None, query: AuditQuery, before: AuditPlace | None, limit: int
) -> Sequence[AuditEntry]:
    """What `audit_of` gives, of all tenants or of one. `connection` has no tenant."""
    rows = await connection.fetch(
        "SELECT * FROM list_audit($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant,
        *_narrowed(query, before, limit=limit),
    )
    return [_entry(row) for row in rows]


def _narrowed(query: AuditQuery, before: AuditPlace | None, *, limit: int) -> Sequence[object]:
    """Arguments behind the tenant's, in the order in which both statements take them."""
    return (*msgspec.structs.astuple(query), before and before.at, before and before.id, limit)


def _entry(row: Row) -> AuditEntry:
    whose = row["tenant_id"]
    return AuditEntry(
        id=UUID(int=row["id"].int),
        at=row["at"],
        tenant_id=None if whose is None else UUID(int=whose.int),
        actor=row["actor"],
        action=row["action"],
        target=row["target"],
        result=row["result"],
        source=row["source"],
        request_id=row["request_id"],
        details=row["details"],
    )

"""What became of a memory, change by change."""

from collections.abc import Collection, Sequence
from uuid import UUID

from memplane_core.contracts.history import HistoryEntry
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection


async def history_page(
    tenant: TenantId,
    connection: Connection,
    memory_id: UUID,
    *,
    before: int | None,
    limit: int,
    owned_by: Collection[str] = (),
) -> Sequence[HistoryEntry]:
    """Changes of a memory, the newest first, from the one below version `before` on.

    Args:
        tenant: Whose memory it is.
        connection: Inside a transaction of the tenant.
        memory_id: Of the memory.
        before: Version of the last entry that is known; None begins at the newest.
        limit: Most entries.
        owned_by: Fields that say whose the memory is: what came before one of them last changed is left out, that
            change included, for it tells of somebody else.
    """
    rows = await connection.fetch(
        """
        SELECT version, event, key_id, request_id, at, changes FROM history
        WHERE tenant_id = $1 AND memory_id = $2 AND version < $3
          AND version > coalesce((
              SELECT max(version) FROM history WHERE tenant_id = $1 AND memory_id = $2 AND changes ?| $5::text[]), 0)
        ORDER BY version DESC LIMIT $4
        """,
        tenant,
        memory_id,
        2**31 - 1 if before is None else before,
        limit,
        list(owned_by),
    )
    return [
        HistoryEntry(
            version=row["version"],
            event=row["event"],
            key_id=row["key_id"],
            request_id=row["request_id"],
            at=row["at"],
            changes=row["changes"],
        )
        for row in rows
    ]

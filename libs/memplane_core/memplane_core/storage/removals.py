"""What the index still has to lose of a tenant's memories, and the record that it was told to."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from memplane_core.domain.index import IndexKey
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.outbox import DUE
from memplane_core.storage.session import Connection


class DueDelete(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that the index has to lose; `attempts` counts how often it was deleted already."""

    memory_id: UUID
    rev: int
    chunks: int
    attempts: int

    def index_keys(self) -> list[IndexKey]:
        """The index keys that it may have taken."""
        return [IndexKey(self.memory_id, self.rev, n) for n in range(self.chunks)]


async def due_deletes(tenant: TenantId, connection: Connection, *, generation: int, limit: int) -> list[DueDelete]:
    """Removals that are due now, in the order they were asked for."""
    rows = await connection.fetch(
        f"""
        SELECT memory_id, rev, chunks, attempts FROM outbox
        WHERE tenant_id = $1 AND generation = $2 AND op = 'delete' AND {DUE}
        ORDER BY seq LIMIT $3
        """,
        tenant,
        generation,
        limit,
    )
    return [
        DueDelete(memory_id=row["memory_id"], rev=row["rev"], chunks=row["chunks"], attempts=row["attempts"])
        for row in rows
    ]


async def advance_deletes(
    tenant: TenantId, connection: Connection, deletes: Sequence[DueDelete], *, generation: int, again_s: float
) -> None:
    """Record that the index was told to lose these: once more after `again_s`, and then for good.

    One that has been queued anew since it was read stays due.
    """
    await connection.execute(
        """
        UPDATE outbox o
        SET attempts = o.attempts + 1,
            done_at = CASE WHEN o.attempts > 0 THEN clock_timestamp() END,
            not_before = clock_timestamp() + make_interval(secs => $6)
        FROM unnest($3::uuid[], $4::int[], $5::int[]) AS s(memory_id, rev, attempts)
        WHERE o.tenant_id = $1 AND o.generation = $2 AND o.op = 'delete' AND o.memory_id = s.memory_id
          AND o.rev = s.rev AND o.done_at IS NULL AND o.attempts = s.attempts
        """,
        tenant,
        generation,
        [delete.memory_id for delete in deletes],
        [delete.rev for delete in deletes],
        [delete.attempts for delete in deletes],
        again_s,
    )

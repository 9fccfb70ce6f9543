"""Removing memories for good, what the index still has to lose of them, and the record that it was told to."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.domain.index import IndexKey
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.merge_ledgers import settle
from memplane_core.storage.outbox import DUE, OR_AGAIN
from memplane_core.storage.session import Connection

_REMOVE: Final = f"""
WITH gone AS (
    DELETE FROM memory WHERE tenant_id = $1 AND id = ANY($2::uuid[])
), used AS (
    DELETE FROM memory_usage WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[])
), scenes AS (
    DELETE FROM memory_scene WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[])
), words AS (
    DELETE FROM memory_words WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[])
), past AS (
    DELETE FROM history WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[])
), unsent AS (
    DELETE FROM outbox WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) AND op = 'upsert'
), chunks AS (
    DELETE FROM chunk WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) RETURNING generation, memory_id, rev
)
INSERT INTO outbox AS o (tenant_id, generation, memory_id, rev, op, chunks)
SELECT $1, generation, memory_id, rev, 'delete', count(*) FROM chunks GROUP BY generation, memory_id, rev
ORDER BY memory_id, generation
{OR_AGAIN}
"""


async def remove_memories(tenant: TenantId, connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Delete memories, their history and all derived from them, whatever their state, and tell the index.

    Nothing of them is left in Postgres but the removals that the outbox still has to tell, which know no more than ids.
    What they were merged into remembers them no more: see `merge_ledgers.settle`.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        ids: Of the memories, in any order; those that are not there are passed over.

    Returns:
        Those that were there, in the order of their ids, which is the order in which they were locked.
    """
    # Locked by a statement of its own: the one that deletes then sees all that writers have made of them.
    locked = await connection.fetch(
        "SELECT id, merged_into FROM memory WHERE tenant_id = $1 AND id = ANY($2::uuid[]) ORDER BY id FOR UPDATE",
        tenant,
        ids,
    )
    there = [row["id"] for row in locked]
    if there:
        await connection.execute(_REMOVE, tenant, there)
        await settle(tenant, connection, {row["merged_into"] for row in locked} - {None, *there})
    return there


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

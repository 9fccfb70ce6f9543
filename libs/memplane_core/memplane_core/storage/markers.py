"""Markers: they take memories out of sight at once, in Postgres and in the index, and can be taken back.

What is hidden keeps its text, chunks, usage, scenes and history, and its `external_id`; it has no words, and the index
is told to lose it. Nothing of it is deleted before `purge_at`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import asyncpg
import msgspec

from memplane_core.domain.errors import DuplicateMemory
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import memories
from memplane_core.storage.generations import join_writers
from memplane_core.storage.memory_writes import PlaceTakenError, release_places, requeue
from memplane_core.storage.outbox import OR_AGAIN, Revision
from memplane_core.storage.reconcile import restore_words
from memplane_core.storage.session import Connection, Row

HiddenState = Literal["forgotten", "merged"]


class Author(msgspec.Struct, frozen=True):
    """Who changes memories, as their history tells.

    Attributes:
        key_id: Public id of an API key; where a job does it, of the key that asked for the job.
        request_id: Of the request, or the job's id.
    """

    key_id: str
    request_id: str


# Locked by a statement of its own: the one that changes them then sees their chunks as they are, and not as they were
# before a wait for the lock.
_LOCK: Final = """
    SELECT m.id, m.rev, m.dedup_key, m.expires_at <= statement_timestamp() AS expired
    FROM memory m JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id
    WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND u.memory_id = ANY($2::uuid[]) AND m.state = $3
    ORDER BY m.id FOR UPDATE OF m, u
"""

_HIDE: Final = f"""
WITH changed AS (
    UPDATE memory m SET state = $4, merged_into = i.merged_into, purge_at = $5, version = m.version + 1,
        updated_at = clock_timestamp()
    FROM unnest($2::uuid[], $3::uuid[]) AS i(id, merged_into)
    WHERE m.tenant_id = $1 AND m.id = i.id
    RETURNING m.id, m.version
), unworded AS (
    DELETE FROM memory_words WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[])
), unsent AS (
    DELETE FROM outbox WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) AND op = 'upsert'
), queued AS (
    INSERT INTO outbox AS o (tenant_id, generation, memory_id, rev, op, chunks)
    SELECT $1, generation, memory_id, rev, 'delete', count(*) FROM chunk
    WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) GROUP BY generation, memory_id, rev
    ORDER BY memory_id, generation
    {OR_AGAIN}
)
INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
SELECT $1, id, version, $4, $6, $7, '{{"state": "active"}}' FROM changed
"""


async def hide(
    tenant: TenantId,
    connection: Connection,
    ids: Sequence[UUID],
    *,
    state: HiddenState,
    purge_at: datetime | None,
    author: Author,
    merged_into: Mapping[UUID, UUID] | None = None,
) -> list[UUID]:
    """Hide memories from the commit on: no search, list, twin check or quota knows them, and the index loses them.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        ids: Of the memories, each once; those that are not active are passed over.
        state: What they become.
        purge_at: When they may be deleted for good; None for never.
        author: For the history.
        merged_into: By id, the memory that stands for one from now on.

    Returns:
        Those that were active, in the order of their ids, which is the order in which they were locked.
    """
    locked = await connection.fetch(_LOCK, tenant, ids, "active")
    active = [row["id"] for row in locked]
    if active:
        into = merged_into or {}
        await connection.execute(
            _HIDE,
            tenant,
            active,
            [into.get(memory_id) for memory_id in active],
            state,
            purge_at,
            author.key_id,
            author.request_id,
        )
    return active


_UNHIDE: Final = """
WITH before AS MATERIALIZED (
    SELECT id, state, merged_into, purge_at FROM memory WHERE tenant_id = $1 AND id = ANY($2::uuid[])
), changed AS (
    UPDATE memory m SET state = 'active', merged_into = NULL, purge_at = NULL, rev = m.rev + 1,
        version = m.version + 1, updated_at = clock_timestamp()
    WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[])
    RETURNING m.id, m.version
)
INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
SELECT $1, c.id, c.version, 'restored', $3, $4, jsonb_strip_nulls(
    jsonb_build_object('state', b.state, 'merged_into', b.merged_into, 'purge_at', b.purge_at))
FROM changed c JOIN before b ON b.id = c.id
"""


async def unhide(
    tenant: TenantId, connection: Connection, ids: Sequence[UUID], *, state: HiddenState, author: Author
) -> list[UUID]:
    """Bring hidden memories back as they were, usage and all. They get their words, and the next revision.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        ids: Of the memories, each once; those that are not in `state` are passed over.
        state: What they are now.
        author: For the history.

    Returns:
        Those that are back, in the order of their ids.

    Raises:
        DuplicateMemory: An active memory has become the same meanwhile, or two of these are the same. None is back.
        QuotaExceeded: When the transaction ends, where the tenant may not have so much stored.
        PlaceTakenError: Another memory became the same just now: look again.
    """
    locked = await connection.fetch(_LOCK, tenant, ids, state)
    if not locked:
        return []
    hidden: list[UUID] = [row["id"] for row in locked]
    await _take_places(tenant, connection, locked)
    await join_writers(tenant, connection)
    try:
        await connection.execute(_UNHIDE, tenant, hidden, author.key_id, author.request_id)
    except asyncpg.UniqueViolationError as error:
        raise PlaceTakenError from error
    await requeue(tenant, connection, [Revision(row["id"], row["rev"] + 1) for row in locked])
    await restore_words(tenant, connection, hidden)
    return hidden


async def _take_places(tenant: TenantId, connection: Connection, locked: Sequence[Row]) -> None:
    """See that no twin stands where these are to be. Of an expired one and a living one, the living one stays."""
    wanted: dict[bytes, Any] = {}
    for row in locked:
        key = row["dedup_key"]
        if key is not None and key in wanted:
            raise _same_as(wanted[key]["id"])
        if key is not None:
            wanted[key] = row
    # Unlocked: two memories that are each to take the other's place would wait for one another.
    twins = await memories.find_twins(tenant, connection, list(wanted)) if wanted else {}
    giving_way: list[UUID] = []
    for key, twin in twins.items():
        if twin.expired:
            giving_way.append(twin.memory.id)
        elif wanted[key]["expired"]:
            giving_way.append(wanted[key]["id"])
        else:
            raise _same_as(twin.memory.id)
    if giving_way:
        await release_places(tenant, connection, giving_way)


def _same_as(twin: UUID) -> DuplicateMemory:
    return DuplicateMemory(f"memory {twin} is the same already", id=twin)

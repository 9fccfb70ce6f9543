"""Writing memories: each statement also writes what the index has to be told, in the same transaction."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from memplane_core.domain.chunking import Chunk
from memplane_core.domain.errors import DuplicateMemory
from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.memories import Revision, find_twins
from memplane_core.storage.session import Connection, pack_vector


class NewMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory to insert. `dedup_key` is None where it may have twins."""

    id: UUID
    external_id: str | None
    content: str
    actor: str | None
    scene: list[str]
    source: str | None
    memory_type: str
    user_id: str | None
    agent_id: str | None
    session_id: str | None
    importance: float
    priority: int
    pinned: bool
    metadata: dict[str, Any]
    occurred_at: datetime
    occurred_given: bool
    expires_at: datetime | None
    dedup_key: bytes | None


class Inserted(msgspec.Struct, frozen=True):
    """When a memory was made, by the database's clock."""

    created_at: datetime


_INSERT = """
WITH input AS (
    SELECT * FROM json_to_recordset($2::json) AS r(
        id uuid, external_id text, content text, actor text, scene text[], source text, memory_type text, user_id text,
        agent_id text, session_id text, importance float8, priority smallint, pinned boolean, metadata jsonb,
        occurred_at timestamptz, occurred_given boolean, expires_at timestamptz, dedup_key text)
), made AS (
    INSERT INTO memory (
        tenant_id, id, external_id, content, actor, scene, source, memory_type, user_id, agent_id, session_id,
        importance, pinned, metadata, occurred_at, occurred_given, expires_at, dedup_key)
    SELECT $1, id, external_id, content, actor, scene, source, memory_type, user_id, agent_id, session_id,
        importance, pinned, metadata, occurred_at, occurred_given, expires_at, decode(dedup_key, 'hex')
    FROM input
    ON CONFLICT DO NOTHING
    RETURNING id, created_at
), used AS (
    INSERT INTO memory_usage (tenant_id, memory_id, priority, last_accessed_at)
    SELECT $1, id, priority, created_at FROM input JOIN made USING (id)
), scenes AS (
    INSERT INTO memory_scene (tenant_id, memory_id, scene)
    SELECT DISTINCT $1::uuid, id, tag FROM input JOIN made USING (id), unnest(scene) AS tag
), chunks AS (
    INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, tokens, embedding)
    SELECT $1, $3, memory_id, 1, n, span_start, span_end, string_to_array(tokens, ' '), embedding
    FROM unnest($4::uuid[], $5::int[], $6::int[], $7::int[], $8::text[], $9::vector[])
        AS c(memory_id, n, span_start, span_end, tokens, embedding)
    JOIN made ON made.id = c.memory_id
), past AS (
    INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
    SELECT $1, id, 1, 'created', $10, $11, '{}' FROM made
), queued AS (
    INSERT INTO outbox (tenant_id, generation, memory_id, rev, op)
    SELECT $1, g.number, made.id, 1, 'upsert' FROM made, generation g WHERE g.tenant_id = $1
)
SELECT id, created_at FROM made
"""


async def insert(
    principal: Principal,
    connection: Connection,
    memories: Sequence[NewMemory],
    *,
    generation: int,
    chunks: dict[UUID, list[Chunk]],
) -> dict[UUID, Inserted]:
    """Insert those that have no twin and no namesake, with their chunks, and queue them for the index: one statement.

    Args:
        principal: Whose memories these are.
        connection: A transaction of the principal's tenant.
        memories: Distinct, and in the same order for every writer: sorted by what can collide.
        generation: That the chunks' vectors were made for.
        chunks: By memory; one without has none yet.

    Returns:
        What was inserted, by id; the rest stand behind another memory.
    """
    flat = [(m.id, chunk) for m in memories for chunk in chunks.get(m.id, ())]
    rows = await connection.fetch(
        _INSERT,
        principal.tenant,
        msgspec.json.encode([_record(m) for m in memories]).decode(),
        generation,
        [memory_id for memory_id, _ in flat],
        [chunk.n for _, chunk in flat],
        [chunk.window.start for _, chunk in flat],
        [chunk.window.end for _, chunk in flat],
        [" ".join(chunk.tokens) for _, chunk in flat],
        [None if chunk.vector is None else pack_vector(chunk.vector) for _, chunk in flat],
        principal.key_id,
        principal.request_id,
    )
    return {row["id"]: Inserted(row["created_at"]) for row in rows}


def _record(memory: NewMemory) -> dict[str, Any]:
    record = msgspec.structs.asdict(memory)
    record["metadata"] = msgspec.Raw(exact_json(memory.metadata))
    record["dedup_key"] = memory.dedup_key and memory.dedup_key.hex()
    return record


_UPDATE = """
WITH input AS (
    SELECT * FROM json_to_record($3::json) AS r(
        content text, actor text, scene text[], source text, memory_type text, user_id text, agent_id text,
        session_id text, importance float8, priority smallint, pinned boolean, metadata jsonb, occurred_at timestamptz,
        occurred_given boolean, expires_at timestamptz, dedup_key text, rev int)
), changed AS (
    UPDATE memory m SET
        content = i.content, actor = i.actor, scene = i.scene, source = i.source, memory_type = i.memory_type,
        user_id = i.user_id, agent_id = i.agent_id, session_id = i.session_id, importance = i.importance,
        pinned = i.pinned, metadata = i.metadata, occurred_at = i.occurred_at, occurred_given = i.occurred_given,
        expires_at = i.expires_at, dedup_key = decode(i.dedup_key, 'hex'), rev = i.rev,
        state = CASE WHEN $7 THEN 'active' ELSE m.state END,
        merged_into = CASE WHEN $7 THEN NULL ELSE m.merged_into END,
        purge_at = CASE WHEN $7 THEN NULL ELSE m.purge_at END,
        version = m.version + 1, updated_at = clock_timestamp()
    FROM input i WHERE m.tenant_id = $1 AND m.id = $2
    RETURNING m.version, m.updated_at
), used AS (
    UPDATE memory_usage u SET priority = i.priority FROM input i
    WHERE u.tenant_id = $1 AND u.memory_id = $2 AND u.priority <> i.priority
), past AS (
    INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
    SELECT $1, $2, version, 'updated', $4, $5, $6 FROM changed
)
SELECT version, updated_at FROM changed
"""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A memory as it is to be from now on.

    Attributes:
        after: Its new fields; `version`, `updated_at` and the index state are the database's to give.
        revive: A hidden memory becomes active again.
        reindex: The index holds something of it that changes: `rev` grows.
        chunks: Its new chunks where the text changed, else None.
        changed: Old values of the fields that change, for the history.
    """

    after: Memory
    occurred_given: bool
    dedup_key: bytes | None
    revive: bool
    reindex: bool
    chunks: list[Chunk] | None
    changed: dict[str, Any]


async def update(
    principal: Principal, connection: Connection, before: Revision, change: Change, *, generation: int
) -> None:
    """Give a locked memory its new form, queue it for the index, and queue the old form for removal.

    Raises:
        DuplicateMemory: Another active memory is the same already; nothing has been changed.
    """
    tenant, memory_id = principal.tenant, before.memory.id
    rev = before.rev + 1 if change.reindex else before.rev
    record = msgspec.structs.asdict(change.after)
    record |= {
        "metadata": msgspec.Raw(exact_json(change.after.metadata)),
        "occurred_given": change.occurred_given,
        "dedup_key": change.dedup_key and change.dedup_key.hex(),
        "rev": rev,
    }
    if change.dedup_key is not None and change.dedup_key != before.dedup_key:
        await _take_place(tenant, connection, change.dedup_key)
    try:
        await connection.fetchrow(
            _UPDATE,
            tenant,
            memory_id,
            msgspec.json.encode(record).decode(),
            principal.key_id,
            principal.request_id,
            change.changed,
            change.revive,
        )
    except asyncpg.UniqueViolationError as error:
        raise DuplicateMemory("another memory became the same just now; read it and try again") from error
    if change.after.scene != before.memory.scene:
        await _replace_scenes(tenant, connection, memory_id, scene=change.after.scene)
    if change.reindex:
        await _requeue(tenant, connection, memory_id, rev=rev)
        if change.chunks is not None:
            await replace_chunks(tenant, connection, memory_id, rev=rev, generation=generation, chunks=change.chunks)


async def _take_place(tenant: TenantId, connection: Connection, dedup_key: bytes) -> None:
    """An expired twin holds no place; a living one keeps it."""
    twins = await find_twins(tenant, connection, [dedup_key])
    twin = twins.get(dedup_key)
    if twin is None:
        return
    if not twin.expired:
        raise DuplicateMemory(f"memory {twin.memory.id} is the same already", id=twin.memory.id)
    await release_place(tenant, connection, twin.memory.id)


async def release_place(tenant: TenantId, connection: Connection, memory_id: UUID) -> None:
    """Let an expired memory no longer stand for what it was, so that another may."""
    await connection.execute("UPDATE memory SET dedup_key = NULL WHERE tenant_id = $1 AND id = $2", tenant, memory_id)


async def _replace_scenes(tenant: TenantId, connection: Connection, memory_id: UUID, *, scene: list[str]) -> None:
    await connection.execute("DELETE FROM memory_scene WHERE tenant_id = $1 AND memory_id = $2", tenant, memory_id)
    await connection.execute(
        """
        INSERT INTO memory_scene (tenant_id, memory_id, scene)
        SELECT DISTINCT $1::uuid, $2::uuid, tag FROM unnest($3::text[]) AS tag
        """,
        tenant,
        memory_id,
        scene,
    )


async def _requeue(tenant: TenantId, connection: Connection, memory_id: UUID, *, rev: int) -> None:
    """Ask the index to drop the old revision and take the new one, whose chunks are the old ones until replaced."""
    await connection.execute(
        """
        WITH unsent AS (
            DELETE FROM outbox WHERE tenant_id = $1 AND memory_id = $2 AND op = 'upsert'
        ), old AS (
            SELECT generation, rev, count(*) AS chunks FROM chunk
            WHERE tenant_id = $1 AND memory_id = $2 GROUP BY generation, rev
        ), dropped AS (
            INSERT INTO outbox (tenant_id, generation, memory_id, rev, op, chunks)
            SELECT $1, generation, $2, rev, 'delete', chunks FROM old
        ), queued AS (
            INSERT INTO outbox (tenant_id, generation, memory_id, rev, op)
            SELECT $1, number, $2, $3, 'upsert' FROM generation WHERE tenant_id = $1
        )
        UPDATE chunk SET rev = $3 WHERE tenant_id = $1 AND memory_id = $2
        """,
        tenant,
        memory_id,
        rev,
    )


async def replace_chunks(
    tenant: TenantId,
    connection: Connection,
    memory_id: UUID,
    *,
    rev: int,
    generation: int,
    chunks: Sequence[Chunk],
) -> None:
    """Give a memory other chunks in one generation; those of other generations are made again by the drain."""
    await connection.execute("DELETE FROM chunk WHERE tenant_id = $1 AND memory_id = $2", tenant, memory_id)
    await connection.execute(
        """
        INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, tokens, embedding)
        SELECT $1, $2, $3, $4, n, span_start, span_end, string_to_array(tokens, ' '), embedding
        FROM unnest($5::int[], $6::int[], $7::int[], $8::text[], $9::vector[])
            AS c(n, span_start, span_end, tokens, embedding)
        """,
        tenant,
        generation,
        memory_id,
        rev,
        [chunk.n for chunk in chunks],
        [chunk.window.start for chunk in chunks],
        [chunk.window.end for chunk in chunks],
        [" ".join(chunk.tokens) for chunk in chunks],
        [None if chunk.vector is None else pack_vector(chunk.vector) for chunk in chunks],
    )

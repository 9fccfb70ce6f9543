"""Writing memories: each statement also writes what the index has to be told, in the same transaction."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import asyncpg
import msgspec

from memplane_core.domain.chunking import FindableText
from memplane_core.domain.memory import Memory, head_of
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.domain.text import terms
from memplane_core.storage.chunks import OwnedChunk, chunk_columns, insert_chunks
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.generations import FED
from memplane_core.storage.memories import Revision as MemoryRevision
from memplane_core.storage.new_memories import NewMemory, Past
from memplane_core.storage.outbox import OR_AGAIN, Revision
from memplane_core.storage.session import Connection
from memplane_core.storage.words import Moved, Owner, Words, move_words, replace_words, word_columns


class Inserted(msgspec.Struct, frozen=True):
    """When a memory was made, by the database's clock."""

    created_at: datetime


_INSERT = """
WITH input AS (
    SELECT * FROM json_to_recordset($2::json) AS r(
        id uuid, external_id text, content text, actor text, scene text[], source text, memory_type text, user_id text,
        agent_id text, session_id text, importance float8, priority smallint, pinned boolean, metadata jsonb,
        occurred_at timestamptz, occurred_given boolean, expires_at timestamptz, valid_from timestamptz,
        valid_to timestamptz, superseded_by uuid, dedup_key text, unscored boolean,
        version int, rev int, state text, merged_into uuid, purge_at timestamptz, created_at timestamptz,
        updated_at timestamptz, merges jsonb, last_accessed_at timestamptz, access_count bigint, helpful int,
        not_helpful int, moved_at timestamptz)
), made AS (
    INSERT INTO memory (
        tenant_id, id, external_id, content, actor, scene, source, memory_type, user_id, agent_id, session_id,
        importance, pinned, metadata, occurred_at, occurred_given, expires_at, valid_from, valid_to, superseded_by,
        dedup_key, unscored, version, rev, state, merged_into, purge_at, created_at, updated_at, merges)
    SELECT $1, id, external_id, content, actor, scene, source, memory_type, user_id, agent_id, session_id,
        importance, pinned, metadata, occurred_at, occurred_given, expires_at, valid_from, valid_to, superseded_by,
        decode(dedup_key, 'hex'), unscored, coalesce(version, 1), coalesce(rev, 1), coalesce(state, 'active'),
        merged_into, purge_at,
        coalesce(created_at, statement_timestamp()), coalesce(updated_at, statement_timestamp()), merges
    FROM input
    ON CONFLICT DO NOTHING
    RETURNING id, rev, state, created_at
), used AS (
    INSERT INTO memory_usage (
        tenant_id, memory_id, priority, last_accessed_at, access_count, helpful, not_helpful, moved_at)
    SELECT $1, i.id, priority, coalesce(last_accessed_at, made.created_at), coalesce(access_count, 0),
        coalesce(helpful, 0), coalesce(not_helpful, 0), moved_at
    FROM input i JOIN made ON made.id = i.id
), scenes AS (
    INSERT INTO memory_scene (tenant_id, memory_id, scene)
    SELECT DISTINCT $1::uuid, i.id, tag FROM input i JOIN made ON made.id = i.id, unnest(scene) AS tag
), chunks AS (
    INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, embedding)
    SELECT $1, $5, memory_id, c.rev, n, span_start, span_end, embedding
    FROM unnest($6::uuid[], $7::int[], $8::int[], $9::int[], $10::int[], $11::vector[])
        AS c(memory_id, rev, n, span_start, span_end, embedding)
    JOIN made ON made.id = c.memory_id
), words AS (
    INSERT INTO memory_words (tenant_id, memory_id, terms, marks, session)
    SELECT $1, memory_id, terms, marks::int4[], session
    FROM unnest($12::uuid[], $13::bytea[], $14::text[], $15::int8[]) AS w(memory_id, terms, marks, session)
    JOIN made ON made.id = w.memory_id
), past AS (
    INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
    SELECT $1, i.id, 1, 'created', $3, $4, '{}' FROM input i JOIN made ON made.id = i.id WHERE version IS NULL
), queued AS (
    INSERT INTO outbox (tenant_id, generation, memory_id, rev, op)
    SELECT $1, fed.number, made.id, made.rev, 'upsert' FROM made, fed_generations($1, $5) AS fed(number)
    WHERE made.state = 'active'
)
SELECT id, created_at FROM made
"""


async def insert(
    principal: Principal,
    connection: Connection,
    memories: Sequence[NewMemory],
    *,
    generation: int,
    texts: dict[UUID, FindableText],
) -> dict[UUID, Inserted]:
    """Insert those that have no twin and no namesake, with all that finds them, and queue them for the index.

    One statement. What comes hidden has its chunks alone, as it would if it had been hidden here.

    Args:
        principal: Whose memories these are.
        connection: A transaction of the principal's tenant.
        memories: Distinct, and in the same order for every writer: sorted by what can collide.
        generation: The active one, that the chunks' vectors were made for. Where another is active by now the statement
            fails with an error of which `session.is_contention` is true: prepare again for that one.
        texts: What each is found by.

    Returns:
        What was inserted, by id; the rest stand behind another memory.
    """
    found_by = [(memory, texts[memory.id]) for memory in memories]
    chunks = chunk_columns(
        OwnedChunk(memory.id, memory.rev, chunk) for memory, text in found_by for chunk in text.chunks
    )
    words = word_columns(principal.tenant, (_words(memory, text) for memory, text in found_by if memory.is_active))
    rows = await connection.fetch(
        _INSERT,
        principal.tenant,
        msgspec.json.encode([_record(m) for m in memories]).decode(),
        principal.key_id,
        principal.request_id,
        generation,
        *chunks,
        *words,
    )
    return {row["id"]: Inserted(row["created_at"]) for row in rows}


def _record(memory: NewMemory) -> dict[str, Any]:
    record = msgspec.structs.asdict(memory)
    past: Past | None = record.pop("past")
    if past is not None:
        record |= msgspec.structs.asdict(past)
    record["metadata"] = msgspec.Raw(exact_json(memory.metadata))
    record["dedup_key"] = memory.dedup_key and memory.dedup_key.hex()
    return record


_UPDATE = """
WITH input AS (
    SELECT * FROM json_to_recordset($2::json) AS r(
        id uuid, content text, actor text, scene text[], source text, memory_type text, user_id text, agent_id text,
        session_id text, importance float8, priority smallint, pinned boolean, metadata jsonb, occurred_at timestamptz,
        occurred_given boolean, expires_at timestamptz, valid_from timestamptz, valid_to timestamptz,
        superseded_by uuid, dedup_key text, rev int, revive boolean, event text, changed jsonb)
), changed AS (
    UPDATE memory m SET
        content = i.content, actor = i.actor, scene = i.scene, source = i.source, memory_type = i.memory_type,
        user_id = i.user_id, agent_id = i.agent_id, session_id = i.session_id, importance = i.importance,
        pinned = i.pinned, metadata = i.metadata, occurred_at = i.occurred_at, occurred_given = i.occurred_given,
        expires_at = i.expires_at, valid_from = i.valid_from, valid_to = i.valid_to, superseded_by = i.superseded_by,
        dedup_key = decode(i.dedup_key, 'hex'), rev = i.rev,
        unscored = m.unscored AND NOT i.changed ? 'importance',
        state = CASE WHEN i.revive THEN 'active' ELSE m.state END,
        merged_into = CASE WHEN i.revive THEN NULL ELSE m.merged_into END,
        purge_at = CASE WHEN i.revive THEN NULL ELSE m.purge_at END,
        version = m.version + 1, updated_at = clock_timestamp()
    FROM input i WHERE m.tenant_id = $1 AND m.id = i.id
    RETURNING m.id, m.version, i.event, i.changed
), used AS (
    UPDATE memory_usage u SET priority = i.priority FROM input i
    WHERE u.tenant_id = $1 AND u.memory_id = i.id AND u.priority <> i.priority
), scenes_left AS (
    DELETE FROM memory_scene s USING input i
    WHERE s.tenant_id = $1 AND s.memory_id = i.id AND NOT s.scene = ANY (i.scene)
), scenes_entered AS (
    INSERT INTO memory_scene (tenant_id, memory_id, scene)
    SELECT DISTINCT $1::uuid, id, tag FROM input, unnest(scene) AS tag
    ON CONFLICT DO NOTHING
)
INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
SELECT $1, id, version, event, $3, $4, changed
FROM changed, (SELECT count(*) FROM fed_generations($1, $5)) AS held(generations)
"""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A memory as it is to be from now on.

    Attributes:
        before: As it is; its row is locked.
        after: Its new fields; `version`, `updated_at` and the index state are the database's to give.
        revive: A hidden memory becomes active again.
        reindex: The index holds something of it that changes: `rev` grows.
        text: What it is found by where that changed, else None.
        changed: Old values of the fields that change, for the history. Where `importance` is among them somebody has
            said what it is, and no model is asked any more.
        event: What the history calls it.
    """

    before: MemoryRevision
    after: Memory
    occurred_given: bool
    dedup_key: bytes | None
    revive: bool
    reindex: bool
    text: FindableText | None
    changed: dict[str, Any]
    event: Literal["updated", "superseded"] = "updated"

    @property
    def rev(self) -> int:
        """The revision from now on."""
        return self.before.rev + 1 if self.reindex else self.before.rev


class PlaceTakenError(Exception):
    """Another memory became the same while this one was being changed: look again."""


async def update(principal: Principal, connection: Connection, changes: Sequence[Change], *, generation: int) -> None:
    """Give locked memories their new forms, queue those for the index, and queue the old forms for removal.

    `generation` is the active one, as in `insert`.

    Raises:
        PlaceTakenError: See there; the transaction is of no use any more.
    """
    if not changes:
        return
    tenant = principal.tenant
    try:
        await connection.execute(
            _UPDATE,
            tenant,
            msgspec.json.encode([_change_record(change) for change in changes]).decode(),
            principal.key_id,
            principal.request_id,
            generation,
        )
    except asyncpg.UniqueViolationError as error:
        raise PlaceTakenError from error
    reindexed = sorted((change for change in changes if change.reindex), key=lambda change: change.after.id)
    if reindexed:
        await requeue(tenant, connection, [Revision(change.after.id, change.rev) for change in reindexed])
        await _reword(tenant, connection, reindexed, generation=generation)


async def _reword(tenant: TenantId, connection: Connection, changes: Sequence[Change], *, generation: int) -> None:
    """New words and chunks where the text is new; where only the owner is, the words are looked up under that one.

    A memory that comes back has lost its words, and gets them again.
    """
    rewritten = [(change, change.text) for change in changes if change.text is not None]
    if rewritten:
        words = [_words(change.after, text) for change, text in rewritten]
        await replace_words(tenant, connection, words)
        await _replace_chunks(tenant, connection, [change for change, _ in rewritten], generation=generation)
    back = [change.after for change in changes if change.text is None and change.revive]
    if back:
        await replace_words(tenant, connection, [words_of(memory) for memory in back])
    moved = [
        Moved(change.after.id, before, after)
        for change in changes
        if change.text is None
        and not change.revive
        and (before := _owner(change.before.memory)) != (after := _owner(change.after))
    ]
    if moved:
        await move_words(tenant, connection, moved)


def _words(memory: Memory | NewMemory, text: FindableText) -> Words:
    return Words(memory.id, text.terms, _owner(memory))


def words_of(memory: Memory) -> Words:
    """A memory's words, made from its text."""
    head = head_of(memory.actor, memory.occurred_at)
    return Words(memory.id, terms(head + memory.content), _owner(memory))


def _owner(memory: Memory | NewMemory) -> Owner:
    return Owner(memory.user_id, memory.agent_id, memory.session_id)


def _change_record(change: Change) -> dict[str, Any]:
    return msgspec.structs.asdict(change.after) | {
        "metadata": msgspec.Raw(exact_json(change.after.metadata)),
        "occurred_given": change.occurred_given,
        "dedup_key": change.dedup_key and change.dedup_key.hex(),
        "rev": change.rev,
        "revive": change.revive,
        "event": change.event,
        "changed": msgspec.Raw(exact_json(change.changed)),
    }


async def release_places(tenant: TenantId, connection: Connection, memory_ids: Sequence[UUID]) -> None:
    """Let expired memories no longer stand for what they were, so that others may."""
    await connection.execute(
        "UPDATE memory SET dedup_key = NULL WHERE tenant_id = $1 AND id = ANY($2::uuid[])", tenant, memory_ids
    )


async def requeue(tenant: TenantId, connection: Connection, revisions: Sequence[Revision]) -> None:
    """Ask the index to drop the old revisions and take these new ones, whose chunks are the old ones until replaced.

    A revision that was removed before, while its memory was hidden, is removed again.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant that holds the writers' lock: see `generations.join_writers`.
        revisions: In the order of their memories, which are locked.
    """
    await connection.execute(
        f"""
        WITH input AS (
            SELECT * FROM unnest($2::uuid[], $3::int[]) AS r(memory_id, rev)
        ), unsent AS (
            DELETE FROM outbox o USING input i
            WHERE o.tenant_id = $1 AND o.memory_id = i.memory_id AND o.op = 'upsert'
        ), old AS (
            SELECT c.generation, c.memory_id, c.rev, count(*) AS chunks FROM chunk c JOIN input i USING (memory_id)
            WHERE c.tenant_id = $1 GROUP BY c.generation, c.memory_id, c.rev
        ), dropped AS (
            INSERT INTO outbox AS o (tenant_id, generation, memory_id, rev, op, chunks)
            SELECT $1, generation, memory_id, rev, 'delete', chunks FROM old
            {OR_AGAIN}
        ), queued AS (
            INSERT INTO outbox (tenant_id, generation, memory_id, rev, op)
            SELECT $1, g.number, i.memory_id, i.rev, 'upsert' FROM input i, generation g
            WHERE g.tenant_id = $1 AND g.{FED}
        )
        UPDATE chunk c SET rev = i.rev FROM input i WHERE c.tenant_id = $1 AND c.memory_id = i.memory_id
        """,
        tenant,
        [revision.memory_id for revision in revisions],
        [revision.rev for revision in revisions],
    )


async def _replace_chunks(
    tenant: TenantId, connection: Connection, changes: Sequence[Change], *, generation: int
) -> None:
    """Give memories other chunks in one generation; those of other generations are made again by the drain."""
    await connection.execute(
        "DELETE FROM chunk WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[])",
        tenant,
        [change.after.id for change in changes],
    )
    owned = (
        OwnedChunk(change.after.id, change.rev, chunk)
        for change in changes
        if change.text
        for chunk in change.text.chunks
    )
    await insert_chunks(tenant, connection, owned, generation=generation)

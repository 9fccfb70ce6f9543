"""What the index still has to be told of a tenant's memories, and the record that it was told."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from memplane_core.domain.chunking import Chunk
from memplane_core.domain.index import NEVER, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.chunks import OwnedChunk, insert_chunks
from memplane_core.storage.session import Connection, Row

T = TypeVar("T", bound=msgspec.Struct)

LONGEST_PAUSE_S: Final = 30.0
"""Most that a row waits before it is tried again."""


class Revision(msgspec.Struct, frozen=True):
    """One revision of a memory's indexed form, with the number of chunks it has or had."""

    memory_id: UUID
    rev: int
    chunks: int = 0


class DueUpsert(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that the index has to hold.

    Attributes:
        attempts: How often it was tried in vain.
        current: False where the memory is gone, hidden, or has a newer revision by now: nothing is to be sent.
        chunks: Chunks stored for it.
        missing: Those among them without a vector.
        size: Bytes of the memory's content; 0 where it is not current.
    """

    memory_id: UUID
    rev: int
    attempts: int
    current: bool
    chunks: int
    missing: int
    size: int

    @property
    def ready(self) -> bool:
        """Whether it can be sent as it is."""
        return self.current and self.chunks > 0 and self.missing == 0

    @property
    def revision(self) -> Revision:
        """What it is about."""
        return Revision(self.memory_id, self.rev, self.chunks)


class PlainText(msgspec.Struct, frozen=True, kw_only=True):
    """A memory's text, to embed."""

    memory_id: UUID
    rev: int
    content: str
    actor: str | None
    occurred_at: datetime


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that the index can never hold, and why: without any of the memory's text."""

    memory_id: UUID
    rev: int
    error: str


DUE: Final = "done_at IS NULL AND failed_at IS NULL AND not_before <= clock_timestamp()"
"""SQL condition of an outbox row that the index could be told of right now."""

OR_AGAIN: Final = """
    ON CONFLICT (tenant_id, memory_id, generation, rev, op) DO UPDATE
    SET chunks = greatest(o.chunks, EXCLUDED.chunks), attempts = 0, done_at = NULL, failed_at = NULL,
        not_before = clock_timestamp()
"""
"""SQL ending of an insert into `outbox AS o` of removals, some of which may have been made before."""

_EMBEDDED: Final = """
    AND (SELECT count(*) > 0 AND count(*) = count(c.embedding) FROM chunk c
         WHERE c.tenant_id = $1 AND c.memory_id = o.memory_id AND c.generation = $2 AND c.rev = o.rev)
"""


async def due_upserts(
    tenant: TenantId, connection: Connection, *, generation: int, limit: int, embedded_only: bool = False
) -> list[DueUpsert]:
    """Upserts that are due now, in the order they were asked for; `embedded_only` leaves out texts without vectors."""
    rows = await connection.fetch(
        f"""
        SELECT o.memory_id, o.rev, o.attempts, m.id IS NOT NULL AS current, c.chunks, c.missing,
               coalesce(octet_length(m.content), 0) AS size
        FROM (
            SELECT memory_id, rev, attempts, seq FROM outbox o
            WHERE tenant_id = $1 AND generation = $2 AND op = 'upsert' AND {DUE} {_EMBEDDED if embedded_only else ""}
            ORDER BY seq LIMIT $3
        ) o
        LEFT JOIN memory m ON m.tenant_id = $1 AND m.id = o.memory_id AND m.rev = o.rev AND m.state = 'active'
        LEFT JOIN LATERAL (
            SELECT count(*)::int AS chunks, count(*) FILTER (WHERE embedding IS NULL)::int AS missing FROM chunk c
            WHERE c.tenant_id = $1 AND c.memory_id = o.memory_id AND c.generation = $2 AND c.rev = o.rev
        ) c ON true
        ORDER BY o.seq
        """,
        tenant,
        generation,
        limit,
    )
    return [_struct(DueUpsert, row) for row in rows]


async def index_rows(
    tenant: TenantId, connection: Connection, revisions: Sequence[Revision], *, generation: int
) -> list[IndexRow]:
    """What the index is to hold of these revisions, chunk by chunk, grouped by memory; nothing of one out of date."""
    rows = await connection.fetch(
        """
        SELECT c.memory_id, c.rev, c.n, c.embedding, m.user_id, m.agent_id, m.session_id, m.memory_type,
               floor(extract(epoch FROM m.occurred_at))::int8 AS occurred_at,
               floor(extract(epoch FROM m.expires_at))::int8 AS expires_at
        FROM unnest($3::uuid[], $4::int[]) AS r(memory_id, rev)
        JOIN memory m ON m.tenant_id = $1 AND m.id = r.memory_id AND m.rev = r.rev AND m.state = 'active'
        JOIN chunk c ON c.tenant_id = $1 AND c.memory_id = r.memory_id AND c.generation = $2 AND c.rev = r.rev
        WHERE c.embedding IS NOT NULL
        ORDER BY c.memory_id, c.n
        """,
        tenant,
        generation,
        *_columns(revisions),
    )
    return [
        IndexRow(
            key=IndexKey(row["memory_id"], row["rev"], row["n"]),
            vector=row["embedding"],
            user_id=row["user_id"] or "",
            agent_id=row["agent_id"] or "",
            session_id=row["session_id"] or "",
            memory_type=row["memory_type"],
            occurred_at=row["occurred_at"],
            expires_at=NEVER if row["expires_at"] is None else row["expires_at"],
        )
        for row in rows
    ]


async def texts(tenant: TenantId, connection: Connection, revisions: Sequence[Revision]) -> list[PlainText]:
    """The texts of those revisions that are still current."""
    rows = await connection.fetch(
        """
        SELECT m.id AS memory_id, m.rev, m.content, m.actor, m.occurred_at
        FROM unnest($2::uuid[], $3::int[]) AS r(memory_id, rev)
        JOIN memory m ON m.tenant_id = $1 AND m.id = r.memory_id AND m.rev = r.rev AND m.state = 'active'
        """,
        tenant,
        *_columns(revisions),
    )
    return [_struct(PlainText, row) for row in rows]


async def store_chunks(
    tenant: TenantId, connection: Connection, chunks: dict[Revision, list[Chunk]], *, generation: int
) -> int:
    """Give memories their embedded chunks in one generation, each only where it is still at that revision.

    The memories stay locked until the transaction ends, so that no edit comes between.

    Returns:
        How many were at their revision.
    """
    locked = await connection.fetch(
        """
        SELECT m.id, m.rev FROM unnest($2::uuid[], $3::int[]) AS r(memory_id, rev)
        JOIN memory m ON m.tenant_id = $1 AND m.id = r.memory_id AND m.rev = r.rev AND m.state = 'active'
        ORDER BY m.id FOR NO KEY UPDATE OF m
        """,
        tenant,
        *_columns(list(chunks)),
    )
    at = {row["id"]: row["rev"] for row in locked}
    await connection.execute(
        "DELETE FROM chunk WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) AND generation = $3",
        tenant,
        list(at),
        generation,
    )
    owned = (
        OwnedChunk(revision.memory_id, revision.rev, chunk)
        for revision, own in chunks.items()
        if at.get(revision.memory_id) == revision.rev
        for chunk in own
    )
    await insert_chunks(tenant, connection, owned, generation=generation)
    return len(at)


async def complete_upserts(
    tenant: TenantId, connection: Connection, sent: Sequence[Revision], *, generation: int, fresh_s: float
) -> int:
    """Record that the index has these revisions; those overtaken while they were being sent are queued for removal.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        sent: Revisions whose chunks the index has acknowledged.
        generation: Of the collection.
        fresh_s: For how long Postgres still answers for them, until the index shows them for sure.

    Returns:
        How many are done now and current. The rest were overtaken, or another drain was faster.
    """
    done = await connection.fetch(
        """
        UPDATE outbox o
        SET done_at = clock_timestamp(), fresh_until = clock_timestamp() + make_interval(secs => $5), error = NULL
        FROM unnest($3::uuid[], $4::int[]) AS s(memory_id, rev)
        WHERE o.tenant_id = $1 AND o.generation = $2 AND o.op = 'upsert' AND o.memory_id = s.memory_id
          AND o.rev = s.rev AND o.done_at IS NULL
          AND EXISTS (
              SELECT 1 FROM memory m
              WHERE m.tenant_id = $1 AND m.id = o.memory_id AND m.rev = o.rev AND m.state = 'active')
        RETURNING o.memory_id, o.rev
        """,
        tenant,
        generation,
        *_columns(sent),
        fresh_s,
    )
    ours = {(row["memory_id"], row["rev"]) for row in done}
    rest = [revision for revision in sent if (revision.memory_id, revision.rev) not in ours]
    if rest:
        await _remove_overtaken(tenant, connection, rest, generation=generation)
        await supersede(tenant, connection, rest, generation=generation)
    return len(ours)


async def _remove_overtaken(
    tenant: TenantId, connection: Connection, revisions: Sequence[Revision], *, generation: int
) -> None:
    """The removal that the edit queued may have run before the rows arrived: it has to run again."""
    await connection.execute(
        f"""
        INSERT INTO outbox AS o (tenant_id, generation, memory_id, rev, op, chunks)
        SELECT $1, $2, r.memory_id, r.rev, 'delete', r.chunks
        FROM unnest($3::uuid[], $4::int[], $5::int[]) AS r(memory_id, rev, chunks)
        WHERE NOT EXISTS (
            SELECT 1 FROM memory m
            WHERE m.tenant_id = $1 AND m.id = r.memory_id AND m.rev = r.rev AND m.state = 'active')
        {OR_AGAIN}
        """,
        tenant,
        generation,
        *_columns(revisions),
        [revision.chunks for revision in sorted(revisions, key=_memory_id)],
    )


async def supersede(
    tenant: TenantId, connection: Connection, revisions: Sequence[Revision], *, generation: int
) -> None:
    """Close upserts whose memory is gone, hidden, or at a newer revision; others are left as they are."""
    await connection.execute(
        """
        UPDATE outbox o SET done_at = clock_timestamp(), fresh_until = clock_timestamp()
        FROM unnest($3::uuid[], $4::int[]) AS s(memory_id, rev)
        WHERE o.tenant_id = $1 AND o.generation = $2 AND o.op = 'upsert' AND o.memory_id = s.memory_id
          AND o.rev = s.rev AND o.done_at IS NULL
          AND NOT EXISTS (
              SELECT 1 FROM memory m
              WHERE m.tenant_id = $1 AND m.id = o.memory_id AND m.rev = o.rev AND m.state = 'active')
        """,
        tenant,
        generation,
        *_columns(revisions),
    )


async def refuse(tenant: TenantId, connection: Connection, refusals: Sequence[Refusal], *, generation: int) -> None:
    """Record that these can never be indexed: they are not tried again, and hold up nothing."""
    await connection.execute(
        """
        UPDATE outbox o SET failed_at = clock_timestamp(), error = s.error, attempts = o.attempts + 1
        FROM unnest($3::uuid[], $4::int[], $5::text[]) AS s(memory_id, rev, error)
        WHERE o.tenant_id = $1 AND o.generation = $2 AND o.op = 'upsert' AND o.memory_id = s.memory_id
          AND o.rev = s.rev AND o.done_at IS NULL
        """,
        tenant,
        generation,
        [refusal.memory_id for refusal in refusals],
        [refusal.rev for refusal in refusals],
        [refusal.error for refusal in refusals],
    )


async def back_off(
    tenant: TenantId, connection: Connection, revisions: Sequence[Revision], *, generation: int
) -> float:
    """Try these upserts again later: after 1, 2, 4, ... seconds, at most `LONGEST_PAUSE_S`.

    Returns:
        The shortest of their pauses, in seconds; 0 where none is waiting any more.
    """
    rows = await connection.fetch(
        """
        UPDATE outbox o
        SET attempts = o.attempts + 1,
            not_before = clock_timestamp() + make_interval(secs => least($5, power(2, least(o.attempts, 16))))
        FROM unnest($3::uuid[], $4::int[]) AS s(memory_id, rev)
        WHERE o.tenant_id = $1 AND o.generation = $2 AND o.op = 'upsert' AND o.memory_id = s.memory_id
          AND o.rev = s.rev AND o.done_at IS NULL AND o.failed_at IS NULL
        RETURNING o.attempts
        """,
        tenant,
        generation,
        *_columns(revisions),
        LONGEST_PAUSE_S,
    )
    return min((min(LONGEST_PAUSE_S, 2.0 ** min(row["attempts"] - 1, 16)) for row in rows), default=0.0)


def _struct(kind: type[T], row: Row, **given: Any) -> T:
    return kind(**given, **{name: row[name] for name in kind.__struct_fields__ if name not in given})


def _memory_id(revision: Revision) -> UUID:
    return revision.memory_id


def _columns(revisions: Sequence[Revision]) -> tuple[list[UUID], list[int]]:
    """By memory, which is the order that writers lock rows in too."""
    revisions = sorted(revisions, key=_memory_id)
    return [revision.memory_id for revision in revisions], [revision.rev for revision in revisions]

"""Filling a generation from Postgres: what to queue, what still waits, and what the index ought to hold."""

from collections.abc import Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.index import IndexKey
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.outbox import Revision
from memplane_core.storage.session import Connection

_COUNTED: Final = 100_000
"""Rows are counted no further."""

_EMBEDDED_OF: Final = 2_000

_START: Final = UUID(int=0)


class Page(msgspec.Struct, frozen=True):
    """Some active memories in the order of their ids.

    Attributes:
        last: The last one's id; None where there was none left.
        seen: How many.
    """

    last: UUID | None
    seen: int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation's outbox holds, each counted up to 100,000.

    Attributes:
        pending: Revisions that the index has not been told of.
        fresh: Those and the ones it was told of moments ago: a search asks Postgres for all of these.
        failed: Current revisions that it can never hold.
        unembedded: Current revisions, among the first 2,000 pending, that have no vectors in this generation: no search
            by meaning finds them.
        removals: Revisions that the index has to lose.
        oldest_s: Age of the oldest pending row, in seconds.
    """

    pending: int
    fresh: int
    failed: int
    unembedded: int
    removals: int
    oldest_s: float


class ExpectedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """An active memory and its chunks in a generation, at its current revision.

    Attributes:
        settled: The outbox says, by a finished row or by none, that the index holds it. Of any other the index is still
            to be told, or can never hold it.
        whole: It has chunks, each with its vector. Where not, it was never embedded, or lost them.
        embedded: Numbers of its chunks with vectors.
    """

    memory_id: UUID
    rev: int
    settled: bool
    whole: bool
    embedded: list[int]

    def index_keys(self) -> list[IndexKey]:
        """What the index ought to hold of it."""
        return [IndexKey(self.memory_id, self.rev, n) for n in self.embedded]


async def count_memories(tenant: TenantId, connection: Connection) -> int:
    """The tenant's active memories, expired ones too."""
    return int(
        await connection.fetchval("SELECT count(*) FROM memory WHERE tenant_id = $1 AND state = 'active'", tenant)
    )


async def queue_page(
    tenant: TenantId, connection: Connection, *, generation: int, after: UUID | None, limit: int
) -> Page:
    """Queue the next active memories for a generation, each at its current revision; twice does no harm.

    One that is edited or deleted at the same time may be queued at a revision that is no longer: the drain closes such
    rows, and the edit itself has queued the new one.
    """
    row = await connection.fetchrow(
        """
        WITH page AS MATERIALIZED (
            SELECT id, rev FROM memory WHERE tenant_id = $1 AND id > $3 AND state = 'active' ORDER BY id LIMIT $4
        ), queued AS (
            INSERT INTO outbox (tenant_id, generation, memory_id, rev, op)
            SELECT $1, $2, id, rev, 'upsert' FROM page
            ON CONFLICT DO NOTHING
        )
        SELECT count(*) AS seen, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last FROM page
        """,
        tenant,
        generation,
        after or _START,
        limit,
    )
    assert row is not None
    return Page(row["last"], row["seen"])


async def queue_again(
    tenant: TenantId, connection: Connection, revisions: Sequence[Revision], *, generation: int
) -> frozenset[UUID]:
    """Have these revisions sent once more; returns the memories that will be.

    One that is no longer current is left out, and so is one that waits to be sent, or can never be.
    """
    rows = await connection.fetch(
        """
        INSERT INTO outbox AS o (tenant_id, generation, memory_id, rev, op)
        SELECT $1, $2, m.id, m.rev, 'upsert' FROM unnest($3::uuid[], $4::int[]) AS r(memory_id, rev)
        JOIN memory m ON m.tenant_id = $1 AND m.id = r.memory_id AND m.rev = r.rev AND m.state = 'active'
        ORDER BY m.id
        ON CONFLICT (tenant_id, memory_id, generation, rev, op) DO UPDATE
        SET attempts = 0, done_at = NULL, error = NULL, not_before = clock_timestamp(), fresh_until = 'infinity'
        WHERE o.done_at IS NOT NULL
        RETURNING memory_id
        """,
        tenant,
        generation,
        [revision.memory_id for revision in revisions],
        [revision.rev for revision in revisions],
    )
    return frozenset(row["memory_id"] for row in rows)


async def waiting(tenant: TenantId, connection: Connection, *, generation: int) -> Waiting:
    """How far the index is behind in one generation."""
    row = await connection.fetchrow(
        f"""
        WITH waiting AS MATERIALIZED (
            SELECT memory_id, rev, created_at FROM outbox
            WHERE tenant_id = $1 AND generation = $2 AND op = 'upsert' AND done_at IS NULL AND failed_at IS NULL
            LIMIT {_COUNTED}
        )
        SELECT count(*) AS pending,
            coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 AS oldest_s,
            (SELECT count(*) FROM (SELECT memory_id, rev FROM waiting LIMIT {_EMBEDDED_OF}) w
             JOIN memory m ON m.tenant_id = $1 AND m.id = w.memory_id AND m.rev = w.rev AND m.state = 'active'
             WHERE NOT (SELECT count(*) > 0 AND count(*) = count(c.embedding) FROM chunk c
                        WHERE c.tenant_id = $1 AND c.memory_id = w.memory_id AND c.generation = $2 AND c.rev = w.rev)
            ) AS unembedded,
            (SELECT count(*) FROM (
                SELECT 1 FROM outbox WHERE tenant_id = $1 AND generation = $2 AND op = 'upsert'
                    AND fresh_until > statement_timestamp() LIMIT {_COUNTED}) f) AS fresh,
            (SELECT count(*) FROM outbox o JOIN memory m ON m.tenant_id = $1 AND m.id = o.memory_id AND m.rev = o.rev
                AND m.state = 'active'
             WHERE o.tenant_id = $1 AND o.generation = $2 AND o.op = 'upsert' AND o.failed_at IS NOT NULL) AS failed,
            (SELECT count(*) FROM (
                SELECT 1 FROM outbox WHERE tenant_id = $1 AND generation = $2 AND op = 'delete'
                    AND done_at IS NULL AND failed_at IS NULL LIMIT {_COUNTED}) d) AS removals
        FROM waiting
        """,
        tenant,
        generation,
    )
    assert row is not None
    return Waiting(**{name: row[name] for name in Waiting.__struct_fields__})


class ChunkCount(msgspec.Struct, frozen=True):
    """Chunks of one generation in Postgres, and those of them that have vectors."""

    chunks: int
    embedded: int


async def count_chunks(tenant: TenantId, connection: Connection) -> dict[int, ChunkCount]:
    """How many chunks there are of each generation; it looks at every one of the tenant's."""
    rows = await connection.fetch(
        """
        SELECT generation, count(*) AS chunks, count(embedding) AS embedded FROM chunk
        WHERE tenant_id = $1 GROUP BY generation
        """,
        tenant,
    )
    return {row["generation"]: ChunkCount(row["chunks"], row["embedded"]) for row in rows}


async def expected_page(
    tenant: TenantId, connection: Connection, *, generation: int, after: UUID | None, limit: int
) -> list[ExpectedMemory]:
    """The next active memories in the order of their ids, with what the index ought to hold of each."""
    rows = await connection.fetch(
        """
        SELECT m.id AS memory_id, m.rev, o.memory_id IS NULL OR o.done_at IS NOT NULL AS settled,
               c.chunks > 0 AND c.chunks = cardinality(c.embedded) AS whole, c.embedded
        FROM (
            SELECT id, rev FROM memory WHERE tenant_id = $1 AND id > $3 AND state = 'active' ORDER BY id LIMIT $4
        ) m
        LEFT JOIN outbox o ON o.tenant_id = $1 AND o.memory_id = m.id AND o.generation = $2 AND o.rev = m.rev
            AND o.op || '' = 'upsert'
        CROSS JOIN LATERAL (
            SELECT count(*) AS chunks, coalesce(array_agg(n ORDER BY n) FILTER (WHERE embedding IS NOT NULL), '{}')
                AS embedded
            FROM chunk WHERE tenant_id = $1 AND memory_id = m.id AND generation = $2 AND rev = m.rev
        ) c
        ORDER BY m.id
        """,
        tenant,
        generation,
        after or _START,
        limit,
    )
    return [ExpectedMemory(**{name: row[name] for name in ExpectedMemory.__struct_fields__}) for row in rows]


async def take_over_vectors(
    tenant: TenantId, connection: Connection, revisions: Sequence[Revision], *, generation: int
) -> list[UUID]:
    """Give memories the chunks that another generation of the same model has of them, each at that very revision.

    The memories stay locked until the transaction ends, as in `outbox.store_chunks`.

    Returns:
        The memories that have all their chunks now.
    """
    rows = await connection.fetch(
        """
        WITH locked AS MATERIALIZED (
            SELECT m.id, m.rev FROM unnest($3::uuid[], $4::int[]) AS r(memory_id, rev)
            JOIN memory m ON m.tenant_id = $1 AND m.id = r.memory_id AND m.rev = r.rev AND m.state = 'active'
            ORDER BY m.id FOR NO KEY UPDATE OF m
        )
        SELECT l.id, l.rev, s.generation FROM locked l CROSS JOIN LATERAL (
            SELECT c.generation FROM chunk c
            JOIN generation g ON g.tenant_id = $1 AND g.number = c.generation AND g.life IN ('building', 'kept')
            JOIN generation own ON own.tenant_id = $1 AND own.number = $2
            WHERE c.tenant_id = $1 AND c.memory_id = l.id AND c.rev = l.rev AND c.generation <> $2
              AND coalesce(g.vectors_of, g.number) = coalesce(own.vectors_of, own.number)
            GROUP BY c.generation HAVING count(*) = count(c.embedding)
            ORDER BY c.generation DESC LIMIT 1
        ) s
        """,
        tenant,
        generation,
        [revision.memory_id for revision in revisions],
        [revision.rev for revision in revisions],
    )
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    await connection.execute(
        "DELETE FROM chunk WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) AND generation = $3",
        tenant,
        ids,
        generation,
    )
    await connection.execute(
        """
        INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, embedding)
        SELECT $1, $2, c.memory_id, c.rev, c.n, c.span_start, c.span_end, c.embedding
        FROM unnest($3::uuid[], $4::int[], $5::int[]) AS s(memory_id, rev, generation)
        JOIN chunk c ON c.tenant_id = $1 AND c.memory_id = s.memory_id AND c.rev = s.rev AND c.generation = s.generation
        """,
        tenant,
        generation,
        ids,
        [row["rev"] for row in rows],
        [row["generation"] for row in rows],
    )
    return ids


async def delete_page(
    tenant: TenantId,
    connection: Connection,
    *,
    table: Literal["chunk", "outbox"],
    generation: int,
    after: UUID | None,
    limit: int,
) -> Page:
    """Delete the rows that a generation has of the next `limit` memories in one of the tables keyed by generation."""
    row = await connection.fetchrow(
        f"""
        WITH page AS MATERIALIZED (
            SELECT DISTINCT memory_id FROM {table} WHERE tenant_id = $1 AND memory_id > $3 ORDER BY memory_id LIMIT $4
        ), gone AS (
            DELETE FROM {table} t USING page p
            WHERE t.tenant_id = $1 AND t.memory_id = p.memory_id AND t.generation = $2
        )
        SELECT count(*) AS seen, (SELECT memory_id FROM page ORDER BY memory_id DESC LIMIT 1) AS last FROM page
        """,
        tenant,
        generation,
        after or _START,
        limit,
    )
    assert row is not None
    return Page(row["last"], row["seen"])

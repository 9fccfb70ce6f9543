"""What Postgres gives a search: fresh rows, the scan that stands in for the index, and the re-check of every hit."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import EntityFilter
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.memories import ALIVE, conditions_of
from memplane_core.storage.session import Connection, Row, pack_vector

FRESH_LIMIT: Final = 1000
"""Most fresh chunks that are scored for one search."""

SCAN_LIMIT: Final = 20_000
"""Most chunks that Postgres scores in the index's place."""

_FRESH_LOOKED_AT: Final = 20_000
"""Most outbox rows whose memories are looked at for one search."""


class StoredHit(msgspec.Struct, frozen=True):
    """A memory's best chunk, scored by Postgres; `rev` is the newest."""

    memory_id: UUID
    rev: int
    cosine: float


class FreshHits(msgspec.Struct, frozen=True):
    """Chunks that the index may not show yet.

    Attributes:
        generation: The tenant's active one as this statement saw it; None where the tenant is gone.
        overflow: There are, or may be, more than were scored.
    """

    generation: int | None
    hits: list[StoredHit]
    overflow: bool


class Checked(msgspec.Struct, frozen=True):
    """What ranking needs of a memory that may be shown; `rev` is the newest."""

    rev: int
    importance: float
    priority: int
    last_accessed_at: datetime


async def fresh_hits(
    tenant: TenantId, connection: Connection, *, generation: int, vector: FloatArray, where: EntityFilter, limit: int
) -> FreshHits:
    """The `limit` nearest of the matching chunks that wait for the index or were given to it moments ago.

    The newest `FRESH_LIMIT` of them are scored.
    """
    values: list[Any] = [tenant, generation, pack_vector(vector), limit]
    conditions = "".join(conditions_of(where, values))
    # Without a filter each row is looked up by its key until there are enough: a hash join would read the whole
    # partition, other tenants' rows and all. A filter may leave so few rows that to begin with them is better.
    by_key = "" if conditions else "OFFSET 0"
    rows = await connection.fetch(
        f"""
        WITH waiting AS MATERIALIZED (
            SELECT memory_id, rev, seq FROM outbox
            WHERE tenant_id = $1 AND generation = $2 AND op = 'upsert' AND fresh_until > statement_timestamp()
            ORDER BY seq DESC LIMIT {_FRESH_LOOKED_AT}
        )
        SELECT t.active_generation, f.memory_id, f.rev, f.cosine,
               f.scored > {FRESH_LIMIT} OR (SELECT count(*) FROM waiting) = {_FRESH_LOOKED_AT} AS unseen
        FROM tenant t LEFT JOIN LATERAL (
          SELECT memory_id, rev, cosine, count(*) OVER () AS scored FROM (
            SELECT o.memory_id, o.rev, c.cosine FROM waiting o
            CROSS JOIN LATERAL (
                SELECT FROM memory m
                WHERE m.tenant_id = $1 AND m.id = o.memory_id AND m.rev = o.rev AND m.state = 'active'
                  AND {ALIVE}{conditions}
                {by_key}
            ) m
            CROSS JOIN LATERAL (
                SELECT -(embedding <#> $3::vector) AS cosine FROM chunk
                WHERE tenant_id = $1 AND generation = $2 AND memory_id = o.memory_id AND rev = o.rev
                  AND embedding IS NOT NULL
                {by_key}
            ) c
            ORDER BY o.seq DESC LIMIT {FRESH_LIMIT + 1}
          ) newest ORDER BY cosine DESC LIMIT $4
        ) f ON true
        WHERE t.id = $1 AND t.deleted_at IS NULL
        """,
        *values,
    )
    found = [row for row in rows if row["memory_id"] is not None]
    return FreshHits(
        generation=rows[0]["active_generation"] if rows else None,
        hits=best_of(found),
        overflow=any(row["unseen"] for row in rows),
    )


def best_of(rows: Sequence[Row]) -> list[StoredHit]:
    """Rows of chunks as one hit a memory, with its best cosine."""
    best: dict[UUID, StoredHit] = {}
    for row in rows:
        known = best.get(row["memory_id"])
        if known is None or row["cosine"] > known.cosine:
            best[row["memory_id"]] = StoredHit(row["memory_id"], row["rev"], row["cosine"])
    return list(best.values())


async def scan(
    tenant: TenantId, connection: Connection, *, generation: int, vector: FloatArray, where: EntityFilter, limit: int
) -> list[StoredHit] | None:
    """The `limit` nearest of all matching memories, exactly; None where there are more than `SCAN_LIMIT` chunks."""
    values: list[Any] = [tenant, generation]
    conditions = "".join(conditions_of(where, values))
    values += [pack_vector(vector), limit]
    rows = await connection.fetch(
        f"""
        WITH scored AS MATERIALIZED (
            SELECT c.memory_id, c.rev, -(c.embedding <#> ${len(values) - 1}::vector) AS cosine
            FROM chunk c JOIN memory m ON m.tenant_id = $1 AND m.id = c.memory_id AND m.rev = c.rev
            WHERE c.tenant_id = $1 AND c.generation = $2 AND c.embedding IS NOT NULL
              AND m.state = 'active' AND {ALIVE}{conditions}
            LIMIT {SCAN_LIMIT + 1}
        )
        SELECT memory_id, rev, max(cosine) AS cosine, (SELECT count(*) FROM scored) AS size FROM scored
        GROUP BY memory_id, rev ORDER BY cosine DESC LIMIT ${len(values)}
        """,
        *values,
    )
    if rows and rows[0]["size"] > SCAN_LIMIT:
        return None
    return [StoredHit(row["memory_id"], row["rev"], row["cosine"]) for row in rows]


async def check(
    tenant: TenantId, connection: Connection, ids: Sequence[UUID], *, where: EntityFilter
) -> dict[UUID, Checked]:
    """Which of these memories may be shown: active, alive, and matching the search's whole filter."""
    values: list[Any] = [tenant, ids]
    conditions = "".join(conditions_of(where, values))
    # The ids for both tables: from the join alone the planner takes to reading the whole of the tenant's usage.
    rows = await connection.fetch(
        f"""
        SELECT m.id, m.rev, m.importance, u.priority, u.last_accessed_at
        FROM memory m JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id AND u.memory_id = ANY($2::uuid[])
        WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND m.state = 'active' AND {ALIVE}{conditions}
        """,
        *values,
    )
    return {row["id"]: Checked(row["rev"], row["importance"], row["priority"], row["last_accessed_at"]) for row in rows}


async def score(
    tenant: TenantId, connection: Connection, ids: Sequence[UUID], *, generation: int, vector: FloatArray
) -> list[StoredHit]:
    """The best chunk of each of these memories at its newest revision; nothing of one that is not embedded yet."""
    rows = await connection.fetch(
        """
        SELECT memory_id, rev, max(-(embedding <#> $4::vector)) AS cosine FROM chunk
        WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) AND generation = $3 AND embedding IS NOT NULL
        GROUP BY memory_id, rev
        """,
        tenant,
        ids,
        generation,
        pack_vector(vector),
    )
    return [StoredHit(row["memory_id"], row["rev"], row["cosine"]) for row in rows]

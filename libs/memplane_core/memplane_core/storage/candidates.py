"""What Postgres nominates for a search where the index cannot: fresh rows, and small or indexless sets of matches."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from memplane_core.domain.errors import NotFound
from memplane_core.domain.filters import Filter
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.text import TERM_BYTES
from memplane_core.domain.validity import ValidAt
from memplane_core.storage.filter_sql import conditions, fetch_matching, needs_usage
from memplane_core.storage.memories import ALIVE, holding
from memplane_core.storage.session import Connection, pack_vector

FRESH_LIMIT: Final = 1000
"""Most fresh chunks that are scored for one search."""

SCAN_LIMIT: Final = 20_000
"""Most chunks that Postgres scores in the index's place."""

_FRESH_LOOKED_AT: Final = 20_000
"""Most outbox rows whose memories are looked at for one search."""

_WORDS: Final = 32
"""Words of a query that are looked for in each text: it takes a pass for each."""

_USAGE: Final = "JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What candidates are nominated for.

    Attributes:
        generation: Whose chunks are looked at.
        vector: Of the query; None where meaning does not count.
        terms: Distinct words of the query, packed; empty where words do not count.
        where: The whole filter.
        limit: Most that each of the two arms nominates.
        valid_at: When what is nominated has to hold.
    """

    generation: int
    vector: FloatArray | None
    terms: bytes
    where: Filter
    limit: int
    valid_at: ValidAt


class Fresh(msgspec.Struct, frozen=True):
    """Memories that the index may not show yet.

    Attributes:
        generation: The tenant's active one as this statement saw it.
        at: The database's clock.
        ids: Nominated among them.
        overflow: There are, or may be, more than were scored.
        settled: Nothing has left the fresh rows since the moment that was asked about: what the index answered then is
            as good as what it would answer now.
    """

    generation: int
    at: datetime
    ids: list[UUID]
    overflow: bool
    settled: bool


async def fresh(tenant: TenantId, connection: Connection, asked: Asked, *, since: datetime | None) -> Fresh:
    """The nearest of the matching chunks that wait for the index or were given to it moments ago.

    The newest `FRESH_LIMIT` of them are scored. Without a vector there are none: words are never stale.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        asked: What for.
        since: See `Fresh.settled`.

    Raises:
        NotFound: The tenant is gone.
    """
    values: list[Any] = [tenant, asked.generation, _vector(asked), asked.limit, since]
    where = conditions(asked.where, values)
    # Without a filter each row is looked up by its key until there are enough: a hash join would read the whole
    # partition, other tenants' rows and all. A filter may leave so few rows that to begin with them is better.
    by_key = "" if where else "OFFSET 0"
    where += holding(asked.valid_at, values)
    rows = await fetch_matching(
        tenant,
        connection,
        f"""
        WITH waiting AS MATERIALIZED (
            SELECT memory_id, rev, seq FROM outbox
            WHERE tenant_id = $1 AND generation = $2 AND op = 'upsert' AND fresh_until > statement_timestamp()
            ORDER BY seq DESC LIMIT {_FRESH_LOOKED_AT}
        )
        SELECT t.active_generation, statement_timestamp() AS at, f.memory_id,
               f.scored > {FRESH_LIMIT} OR (SELECT count(*) FROM waiting) = {_FRESH_LOOKED_AT} AS unseen,
               $5::timestamptz IS NOT NULL AND NOT EXISTS (
                   SELECT FROM outbox
                   WHERE tenant_id = $1 AND generation = $2 AND op = 'upsert'
                     AND fresh_until > $5 AND fresh_until <= statement_timestamp()) AS settled
        FROM tenant t LEFT JOIN LATERAL (
          SELECT memory_id, cosine, count(*) OVER () AS scored FROM (
            SELECT o.memory_id, c.cosine FROM waiting o
            CROSS JOIN LATERAL (
                SELECT FROM memory m {_USAGE if needs_usage(asked.where) else ""}
                WHERE m.tenant_id = $1 AND m.id = o.memory_id AND m.rev = o.rev AND m.state = 'active'
                  AND {ALIVE}{where}
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
        where=asked.where,
        values=values[1:],
    )
    if not rows:
        raise NotFound("this tenant does not exist any more")
    return Fresh(
        generation=rows[0]["active_generation"],
        at=rows[0]["at"],
        ids=list({row["memory_id"]: None for row in rows if row["memory_id"] is not None}),
        overflow=bool(rows[0]["unseen"]),
        settled=rows[0]["settled"],
    )


async def among_matches(tenant: TenantId, connection: Connection, asked: Asked, *, most: int) -> list[UUID] | None:
    """The best of all matching memories by either arm, exactly: nearest by cosine, and by the weight of shared words.

    Where meaning counts and they are no more than `asked.limit`, all of them, also those that wait for their vector.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        asked: What for.
        most: Matching memories with which this is still done.

    Returns:
        None where there are more, or more than `SCAN_LIMIT` chunks of them.
    """
    values: list[Any] = [tenant, asked.generation, _vector(asked), _words(asked.terms), asked.limit]
    where = conditions(asked.where, values)
    where += holding(asked.valid_at, values)
    rows = await fetch_matching(
        tenant,
        connection,
        f"""
        WITH matching AS MATERIALIZED (
            SELECT m.id FROM memory m {_USAGE if needs_usage(asked.where) else ""}
            WHERE m.tenant_id = $1 AND m.state = 'active' AND {ALIVE}{where}
            LIMIT {most + 1}
        ), few AS (
            SELECT count(*) <= {most} AS memories FROM matching
        ), scored AS MATERIALIZED (
            SELECT c.memory_id, -(c.embedding <#> $3::vector) AS cosine
            FROM matching JOIN chunk c ON c.tenant_id = $1 AND c.generation = $2 AND c.memory_id = matching.id
            WHERE (SELECT memories FROM few)
            LIMIT {SCAN_LIMIT + 1}
        ), sharing AS MATERIALIZED (
            SELECT w.memory_id, q.term
            FROM matching JOIN memory_words w ON w.tenant_id = $1 AND w.memory_id = matching.id
            CROSS JOIN unnest($4::bytea[]) AS q(term)
            WHERE (SELECT memories FROM few) AND position(q.term IN w.terms) > 0
        ), rarity AS (
            SELECT term, ln(1 + ((SELECT count(*) FROM matching) - count(*) + 0.5) / (count(*) + 0.5)) AS weight
            FROM sharing GROUP BY term
        ), nearest AS (
            SELECT memory_id FROM scored WHERE cosine IS NOT NULL
            GROUP BY memory_id ORDER BY max(cosine) DESC LIMIT $5
        ), closest AS (
            SELECT memory_id FROM sharing JOIN rarity USING (term)
            GROUP BY memory_id ORDER BY sum(weight) DESC LIMIT $5
        ), all_of_few AS (
            SELECT id AS memory_id FROM matching WHERE $3::vector IS NOT NULL AND (SELECT count(*) FROM matching) <= $5
        ), nominated AS (
            SELECT memory_id FROM nearest UNION SELECT memory_id FROM closest UNION SELECT memory_id FROM all_of_few
        )
        SELECT (SELECT memories FROM few) AND (SELECT count(*) FROM scored) <= {SCAN_LIMIT} AS few, n.memory_id
        FROM (SELECT) one LEFT JOIN nominated n ON true
        """,
        where=asked.where,
        values=values[1:],
    )
    if not rows[0]["few"]:
        return None
    return [row["memory_id"] for row in rows if row["memory_id"] is not None]


def _vector(asked: Asked) -> bytes | None:
    return None if asked.vector is None else pack_vector(asked.vector)


def _words(terms: bytes) -> Sequence[bytes]:
    """The first `_WORDS` of them."""
    some = terms[: _WORDS * TERM_BYTES]
    return [some[start : start + TERM_BYTES] for start in range(0, len(some), TERM_BYTES)]

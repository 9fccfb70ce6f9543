"""Reads nominated memories as ranking needs them: at their newest revision, and only those that may be shown."""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from memplane_core.domain.filters import Filter
from memplane_core.domain.index import FloatArray
from memplane_core.domain.ranking import Candidate
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.validity import ValidAt
from memplane_core.storage.filter_sql import conditions, fetch_matching
from memplane_core.storage.memories import ALIVE, holding
from memplane_core.storage.session import Connection, Row, pack_vector

_LONG: Final = 8_192
"""Bytes of packed terms that a memory is ranked by, and of a text that may be a bare question: of a longer one its
beginning speaks, or a pool of long memories would be megabytes."""


async def read_pool(
    tenant: TenantId,
    connection: Connection,
    ids: Collection[UUID],
    *,
    generation: int,
    vector: FloatArray | None,
    where: Filter,
    valid_at: ValidAt,
) -> list[Candidate]:
    """Those of the nominated memories that are active, alive, hold and match the whole filter, with what ranks them.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        ids: The nominated.
        generation: Whose chunks are compared.
        vector: Of the query; without it no candidate has a cosine.
        where: The search's whole filter.
        valid_at: When they have to hold.
    """
    values: list[Any] = [tenant, ids, generation, None if vector is None else pack_vector(vector)]
    matching = conditions(where, values)
    matching += holding(valid_at, values)
    # The ids for both tables: from the join alone the planner takes to reading the whole of the tenant's usage.
    rows = await fetch_matching(
        tenant,
        connection,
        f"""
        SELECT m.id, m.version, m.importance, u.priority, u.last_accessed_at, m.actor, m.occurred_at, w.session,
               octet_length(m.content) < {_LONG} AND right(rtrim(m.content), 1) IN ('?', '？') AS question,
               c.cosine, substring(w.terms FROM 1 FOR {_LONG}) AS terms
        FROM memory m
        JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id AND u.memory_id = ANY($2::uuid[])
        LEFT JOIN memory_words w ON w.tenant_id = $1 AND w.memory_id = m.id
        LEFT JOIN LATERAL (
            SELECT max(-(embedding <#> $4::vector)) AS cosine FROM chunk
            WHERE tenant_id = $1 AND memory_id = m.id AND generation = $3
        ) c ON true
        WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND m.state = 'active' AND {ALIVE}{matching}
        """,
        where=where,
        values=values[1:],
    )
    return [_candidate(row) for row in rows]


def _candidate(row: Row) -> Candidate:
    return Candidate(
        memory_id=row["id"],
        version=row["version"],
        cosine=row["cosine"],
        terms=row["terms"] or b"",
        session=row["session"],
        actor=row["actor"],
        occurred_at=row["occurred_at"],
        question=row["question"],
        importance=row["importance"],
        priority=row["priority"],
        last_accessed_at=row["last_accessed_at"],
    )

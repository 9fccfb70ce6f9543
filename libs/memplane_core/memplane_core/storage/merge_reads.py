"""What the job `merge` reads: memories that were changed, what stands for what, texts and vectors."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.domain.index import FloatArray
from memplane_core.domain.merging import Candidate
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.memories import ALIVE
from memplane_core.storage.merges import candidate_of
from memplane_core.storage.session import Connection

FIRST: Final = UUID(int=0)


class Place(msgspec.Struct, frozen=True):
    """A place in the order in which memories were last changed."""

    at: datetime
    id: UUID


class Scope(msgspec.Struct, frozen=True):
    """Memories of different scopes are never merged."""

    user_id: str | None
    agent_id: str | None
    memory_type: str


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """An active memory that was changed, with what its like are looked for by.

    Attributes:
        waits: The index may not show it yet, or it has no vectors yet.
        planned: Another one is to stand for it already.
        vector: Of its first chunk; None where it cannot be embedded, or not yet.
    """

    place: Place
    scope: Scope
    waits: bool
    planned: bool
    vector: FloatArray | None


async def seeds(
    tenant: TenantId,
    connection: Connection,
    *,
    job_id: UUID,
    generation: int,
    after: Place,
    until: datetime,
    limit: int,
) -> list[Seed]:
    """The active memories that were changed next after a place and not after `until`, in that order."""
    rows = await connection.fetch(
        f"""
        WITH page AS MATERIALIZED (
            SELECT m.id, m.rev, m.updated_at, m.user_id, m.agent_id, m.memory_type FROM memory m
            WHERE m.tenant_id = $1 AND m.state = 'active' AND (m.updated_at, m.id) > ($4::timestamptz, $5::uuid)
              AND m.updated_at <= $6 AND {ALIVE}
            ORDER BY m.updated_at, m.id LIMIT $7
        )
        SELECT p.id, p.updated_at, p.user_id, p.agent_id, p.memory_type, c.embedding,
            o.memory_id IS NOT NULL AND o.failed_at IS NULL
                AND (o.done_at IS NULL OR o.fresh_until > statement_timestamp()) AS waits,
            coalesce(l.survivor_id <> p.id, false) AS planned
        FROM page p
        LEFT JOIN outbox o ON o.tenant_id = $1 AND o.memory_id = p.id AND o.generation = $3 AND o.rev = p.rev
            AND o.op || '' = 'upsert'
        LEFT JOIN chunk c ON c.tenant_id = $1 AND c.memory_id = p.id AND c.generation = $3 AND c.n = 0 AND c.rev = p.rev
        LEFT JOIN merge_plan l ON l.tenant_id = $1 AND l.job_id = $2 AND l.memory_id = p.id
        ORDER BY p.updated_at, p.id
        """,
        tenant,
        job_id,
        generation,
        after.at,
        after.id,
        until,
        limit,
    )
    return [
        Seed(
            place=Place(row["updated_at"], row["id"]),
            scope=Scope(row["user_id"], row["agent_id"], row["memory_type"]),
            waits=row["waits"],
            planned=row["planned"],
            vector=row["embedding"],
        )
        for row in rows
    ]


async def unsettled(tenant: TenantId, connection: Connection, *, generation: int, until: datetime) -> bool:
    """Whether the index may not show yet what was written up to `until`."""
    return await connection.fetchval(
        """
        SELECT EXISTS (
            SELECT FROM outbox WHERE tenant_id = $1 AND generation = $2 AND op = 'upsert' AND failed_at IS NULL
              AND fresh_until > statement_timestamp() AND created_at <= $3)
        """,
        tenant,
        generation,
        until,
    )


async def now(tenant: TenantId, connection: Connection) -> datetime:
    """The database's clock."""
    del tenant
    return await connection.fetchval("SELECT clock_timestamp()")


async def count_seeds(tenant: TenantId, connection: Connection, *, after: datetime, until: datetime) -> int:
    """How many `seeds` gives in all."""
    return await connection.fetchval(
        f"""
        SELECT count(*) FROM memory m WHERE m.tenant_id = $1 AND m.state = 'active' AND m.updated_at > $2
          AND m.updated_at <= $3 AND {ALIVE}
        """,
        tenant,
        after,
        until,
    )


async def standing_for(tenant: TenantId, connection: Connection, ids: Collection[UUID], *, job_id: UUID) -> set[UUID]:
    """The active memories that stand for these now, or will by the plan; those that are active stand for themselves.

    The index may still name what was merged away: its like are those of what it was merged into.
    """
    rows = await connection.fetch(
        f"""
        WITH RECURSIVE up AS (
            SELECT m.id, m.state, m.merged_into FROM memory m WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[])
            UNION
            SELECT m.id, m.state, m.merged_into FROM up JOIN memory m ON m.tenant_id = $1 AND m.id = up.merged_into
            WHERE up.state = 'merged'
        )
        SELECT DISTINCT m.id FROM up
        LEFT JOIN merge_plan l ON l.tenant_id = $1 AND l.job_id = $3 AND l.memory_id = up.id
        JOIN memory m ON m.tenant_id = $1 AND m.id = coalesce(l.survivor_id, up.id)
        WHERE up.state = 'active' AND m.state = 'active' AND {ALIVE}
        """,
        tenant,
        list(ids),
        job_id,
    )
    return {row["id"] for row in rows}


async def chunks_up_to(tenant: TenantId, connection: Connection, *, generation: int, most: int) -> int:
    """How many chunks of active and hidden memories there are in a generation, counted up to one more than `most`."""
    return await connection.fetchval(
        "SELECT count(*) FROM (SELECT FROM chunk WHERE tenant_id = $1 AND generation = $2 LIMIT $3) c",
        tenant,
        generation,
        most + 1,
    )


async def vectors(
    tenant: TenantId, connection: Connection, ids: Collection[UUID], *, generation: int
) -> dict[UUID, list[FloatArray]]:
    """By memory, active or hidden, the vectors of its chunks in order; those that lack one are left out."""
    rows = await connection.fetch(
        """
        SELECT c.memory_id, c.embedding FROM chunk c
        JOIN memory m ON m.tenant_id = $1 AND m.id = c.memory_id AND m.rev = c.rev
        WHERE c.tenant_id = $1 AND c.memory_id = ANY($2::uuid[]) AND c.generation = $3
        ORDER BY c.memory_id, c.n
        """,
        tenant,
        list(ids),
        generation,
    )
    found: defaultdict[UUID, list[FloatArray]] = defaultdict(list)
    lacking: set[UUID] = set()
    for row in rows:
        if row["embedding"] is None:
            lacking.add(row["memory_id"])
        else:
            found[row["memory_id"]].append(row["embedding"])
    return {memory_id: its for memory_id, its in found.items() if memory_id not in lacking}


class OwnedVector(msgspec.Struct, frozen=True):
    """A chunk of an active memory."""

    scope: Scope
    memory_id: UUID
    vector: FloatArray


async def all_vectors(tenant: TenantId, connection: Connection, *, generation: int) -> list[OwnedVector]:
    """All vectors of active memories in a generation, in the order of the memories. For few of them."""
    rows = await connection.fetch(
        f"""
        SELECT m.user_id, m.agent_id, m.memory_type, c.memory_id, c.embedding FROM chunk c
        JOIN memory m ON m.tenant_id = $1 AND m.id = c.memory_id AND m.rev = c.rev AND m.state = 'active' AND {ALIVE}
        WHERE c.tenant_id = $1 AND c.generation = $2 AND c.embedding IS NOT NULL
        ORDER BY c.memory_id, c.n
        """,
        tenant,
        generation,
    )
    return [
        OwnedVector(Scope(row["user_id"], row["agent_id"], row["memory_type"]), row["memory_id"], row["embedding"])
        for row in rows
    ]


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A memory, active or hidden, with its text.

    Attributes:
        occurred_at: None where no time was given.
    """

    id: UUID
    rev: int
    active: bool
    scope: Scope
    actor: str | None
    content: str
    occurred_at: datetime | None
    candidate: Candidate


async def texts(tenant: TenantId, connection: Connection, ids: Sequence[UUID]) -> list[Text]:
    """Those of these memories that exist, in whatever state."""
    rows = await connection.fetch(
        """
        SELECT m.id, m.rev, m.state = 'active' AS active, m.user_id, m.agent_id, m.memory_type, m.actor, m.content,
            m.pinned, m.scene, m.importance, m.expires_at, m.created_at, char_length(m.content) AS length,
            u.priority, u.access_count,
            CASE WHEN m.occurred_given THEN m.occurred_at END AS occurred_at
        FROM memory m JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id
        WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND u.memory_id = ANY($2::uuid[])
        """,
        tenant,
        ids,
    )
    return [
        Text(
            id=row["id"],
            rev=row["rev"],
            active=row["active"],
            scope=Scope(row["user_id"], row["agent_id"], row["memory_type"]),
            actor=row["actor"],
            content=row["content"],
            occurred_at=row["occurred_at"],
            candidate=candidate_of(row),
        )
        for row in rows
    ]


async def stood_for(
    tenant: TenantId, connection: Connection, ids: Collection[UUID], *, job_id: UUID, most: int
) -> dict[UUID, set[UUID]]:
    """By memory, all that it stands for now or will by the plan, itself among them; counted up to `most` in all."""
    rows = await connection.fetch(
        """
        WITH RECURSIVE down AS (
            SELECT s.id AS root, s.id FROM unnest($2::uuid[]) AS s(id)
            UNION
            SELECT l.survivor_id, l.memory_id FROM merge_plan l
            WHERE l.tenant_id = $1 AND l.job_id = $3 AND l.survivor_id = ANY($2::uuid[])
            UNION
            SELECT down.root, m.id FROM down
            JOIN memory m ON m.tenant_id = $1 AND m.merged_into = down.id AND m.state = 'merged'
        )
        SELECT root, id FROM down LIMIT $4
        """,
        tenant,
        list(ids),
        job_id,
        most,
    )
    found: defaultdict[UUID, set[UUID]] = defaultdict(set)
    for row in rows:
        found[row["root"]].add(row["id"])
    return dict(found)

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
from memplane_core.storage.session import Connection, Row

FIRST: Final = UUID(int=0)

_SCOPE: Final = "m.user_id, m.agent_id, m.memory_type, m.valid_from, m.valid_to"


class Place(msgspec.Struct, frozen=True):
    """A place in the order in which memories were last changed."""

    at: datetime
    id: UUID


class Scope(msgspec.Struct, frozen=True):
    """Memories of different scopes are never merged."""

    user_id: str | None
    agent_id: str | None
    memory_type: str
    valid_from: datetime | None
    valid_to: datetime | None


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
    page = await connection.fetch(
        f"""
        SELECT m.id, m.rev, m.updated_at, {_SCOPE} FROM memory m
        WHERE m.tenant_id = $1 AND m.state = 'active' AND (m.updated_at, m.id) > ($2::timestamptz, $3::uuid)
          AND m.updated_at <= $4 AND {ALIVE}
        ORDER BY m.updated_at, m.id LIMIT $5
        """,
        tenant,
        after.at,
        after.id,
        until,
        limit,
    )
    # By their keys, one table after the other: from a join the planner, which may know nothing of a tenant yet, takes
    # to reading the whole of one of them for each row of another.
    ids = [row["id"] for row in page]
    chunks = await connection.fetch(
        """
        SELECT memory_id, rev, embedding FROM chunk
        WHERE tenant_id = $1 AND generation = $2 AND memory_id = ANY($3::uuid[]) AND n = 0
        """,
        tenant,
        generation,
        ids,
    )
    waiting = await connection.fetch(
        """
        SELECT memory_id, rev FROM outbox
        WHERE tenant_id = $1 AND generation = $2 AND memory_id = ANY($3::uuid[]) AND op || '' = 'upsert'
          AND failed_at IS NULL AND (done_at IS NULL OR fresh_until > statement_timestamp())
        """,
        tenant,
        generation,
        ids,
    )
    planned = await _planned(tenant, connection, ids, job_id=job_id)
    first = {(row["memory_id"], row["rev"]): row["embedding"] for row in chunks}
    waits = {(row["memory_id"], row["rev"]) for row in waiting}
    return [
        Seed(
            place=Place(row["updated_at"], row["id"]),
            scope=_scope(row),
            waits=(row["id"], row["rev"]) in waits,
            planned=planned.get(row["id"], row["id"]) != row["id"],
            vector=first.get((row["id"], row["rev"])),
        )
        for row in page
    ]


async def _planned(
    tenant: TenantId, connection: Connection, ids: Collection[UUID], *, job_id: UUID
) -> dict[UUID, UUID]:
    """By memory, the one that is to stand for it by the plan; it itself, where it stays."""
    rows = await connection.fetch(
        """
        SELECT memory_id, survivor_id FROM merge_plan
        WHERE tenant_id = $1 AND job_id = $2 AND memory_id = ANY($3::uuid[])
        """,
        tenant,
        job_id,
        list(ids),
    )
    return {row["memory_id"]: row["survivor_id"] for row in rows}


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
    active: set[UUID] = set()
    looked_at, hits = set[UUID](), set(ids)
    while hits:
        rows = await connection.fetch(
            f"""
            SELECT m.id, m.state, m.merged_into FROM memory m
            WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND {ALIVE}
            """,
            tenant,
            list(hits),
        )
        looked_at |= hits
        active.update(row["id"] for row in rows if row["state"] == "active")
        hits = {row["merged_into"] for row in rows if row["state"] == "merged"} - looked_at - {None}
    planned = await _planned(tenant, connection, active, job_id=job_id)
    return {planned.get(memory_id, memory_id) for memory_id in active}


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
        SELECT {_SCOPE}, c.memory_id, c.embedding FROM chunk c
        JOIN memory m ON m.tenant_id = $1 AND m.id = c.memory_id AND m.rev = c.rev AND m.state = 'active' AND {ALIVE}
        WHERE c.tenant_id = $1 AND c.generation = $2 AND c.embedding IS NOT NULL
        ORDER BY c.memory_id, c.n
        """,
        tenant,
        generation,
    )
    return [OwnedVector(_scope(row), row["memory_id"], row["embedding"]) for row in rows]


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
        f"""
        SELECT m.id, m.rev, m.state = 'active' AS active, {_SCOPE}, m.actor, m.content,
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
            scope=_scope(row),
            actor=row["actor"],
            content=row["content"],
            occurred_at=row["occurred_at"],
            candidate=candidate_of(row),
        )
        for row in rows
    ]


def _scope(row: Row) -> Scope:
    return Scope(**{name: row[name] for name in Scope.__struct_fields__})


async def stood_for(
    tenant: TenantId, connection: Connection, ids: Collection[UUID], *, job_id: UUID, most: int
) -> dict[UUID, set[UUID]]:
    """By memory, all that it stands for now or will by the plan, itself among them; counted up to `most` in all."""
    rows = await connection.fetch(
        """
        SELECT memory_id, survivor_id FROM merge_plan
        WHERE tenant_id = $1 AND job_id = $2 AND survivor_id = ANY($3::uuid[]) LIMIT $4
        """,
        tenant,
        job_id,
        list(ids),
        most,
    )
    root = {memory_id: memory_id for memory_id in ids} | {row["memory_id"]: row["survivor_id"] for row in rows}
    above = list(root)
    while above and len(root) < most:
        rows = await connection.fetch(
            """
            SELECT id, merged_into FROM memory
            WHERE tenant_id = $1 AND merged_into = ANY($2::uuid[]) AND state = 'merged' LIMIT $3
            """,
            tenant,
            above,
            most - len(root),
        )
        below = {row["id"]: root[row["merged_into"]] for row in rows if row["id"] not in root}
        root |= below
        above = list(below)
    found: defaultdict[UUID, set[UUID]] = defaultdict(set)
    for memory_id, of in root.items():
        found[of].add(memory_id)
    return dict(found)

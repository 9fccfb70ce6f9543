"""The plan that a run of the job `merge` makes, and how far all runs have come.

A plan is rows: which memory is to stand for which. It is made whole before any of it is carried out, so that a dry run
and a real one are the same until then.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection


class Planned(msgspec.Struct, frozen=True):
    """One memory of a plan: which is to stand for it (itself, where it stays), and the revision that was compared."""

    memory_id: UUID
    survivor_id: UUID
    rev: int


async def plan(tenant: TenantId, connection: Connection, planned: Sequence[Planned], *, job_id: UUID) -> None:
    """Plan that memories are to stand for others, and for all that those were to stand for. Again changes nothing.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant that holds the job.
        planned: Each memory once, the survivors among them.
        job_id: Of the job.
    """
    await connection.execute(
        """
        WITH input AS (
            SELECT * FROM unnest($3::uuid[], $4::uuid[], $5::int[]) AS r(memory_id, survivor_id, rev)
        ), moved AS (
            UPDATE merge_plan l SET survivor_id = r.survivor_id FROM input r
            WHERE l.tenant_id = $1 AND l.job_id = $2 AND l.survivor_id = r.memory_id AND l.survivor_id <> r.survivor_id
        )
        INSERT INTO merge_plan (tenant_id, job_id, memory_id, survivor_id, rev)
        SELECT $1, $2, memory_id, survivor_id, rev FROM input r
        WHERE NOT EXISTS (
            SELECT FROM merge_plan l WHERE l.tenant_id = $1 AND l.job_id = $2 AND l.memory_id = r.memory_id)
        """,
        tenant,
        job_id,
        [its.memory_id for its in planned],
        [its.survivor_id for its in planned],
        [its.rev for its in planned],
    )


class PlanSize(msgspec.Struct, frozen=True):
    """How many memories a plan merges into how many."""

    merged: int
    clusters: int


async def plan_size(tenant: TenantId, connection: Connection, *, job_id: UUID) -> PlanSize:
    """What a plan comes to."""
    row = await connection.fetchrow(
        """
        SELECT count(*) FILTER (WHERE memory_id <> survivor_id) AS merged,
            count(*) FILTER (WHERE memory_id = survivor_id) AS clusters
        FROM merge_plan WHERE tenant_id = $1 AND job_id = $2
        """,
        tenant,
        job_id,
    )
    assert row is not None
    return PlanSize(row["merged"], row["clusters"])


async def plan_sample(tenant: TenantId, connection: Connection, *, job_id: UUID, clusters: int) -> list[UUID]:
    """Two of each of some clusters, one after the other: the memory that is to stay, and one that is to go."""
    rows = await connection.fetch(
        """
        SELECT survivor_id, min(memory_id::text)::uuid AS memory_id FROM merge_plan
        WHERE tenant_id = $1 AND job_id = $2 AND memory_id <> survivor_id
        GROUP BY survivor_id ORDER BY survivor_id LIMIT $3
        """,
        tenant,
        job_id,
        clusters,
    )
    return [row[column] for row in rows for column in ("survivor_id", "memory_id")]


async def next_planned(tenant: TenantId, connection: Connection, *, job_id: UUID, limit: int) -> list[Planned]:
    """What is not carried out yet, cluster by cluster, each in the order of its ids."""
    rows = await connection.fetch(
        """
        SELECT memory_id, survivor_id, rev FROM merge_plan
        WHERE tenant_id = $1 AND job_id = $2 ORDER BY survivor_id, memory_id LIMIT $3
        """,
        tenant,
        job_id,
        limit,
    )
    return [Planned(row["memory_id"], row["survivor_id"], row["rev"]) for row in rows]


async def planned_rev(tenant: TenantId, connection: Connection, memory_id: UUID, *, job_id: UUID) -> int | None:
    """The revision of a memory that was compared."""
    return await connection.fetchval(
        "SELECT rev FROM merge_plan WHERE tenant_id = $1 AND job_id = $2 AND memory_id = $3", tenant, job_id, memory_id
    )


async def done_with(tenant: TenantId, connection: Connection, ids: Collection[UUID], *, job_id: UUID) -> None:
    """Take memories out of a plan."""
    await connection.execute(
        "DELETE FROM merge_plan WHERE tenant_id = $1 AND job_id = $2 AND memory_id = ANY($3::uuid[])",
        tenant,
        job_id,
        list(ids),
    )


async def forget_cluster(tenant: TenantId, connection: Connection, survivor: UUID, *, job_id: UUID) -> None:
    """Take a whole cluster out of a plan."""
    await connection.execute(
        "DELETE FROM merge_plan WHERE tenant_id = $1 AND job_id = $2 AND survivor_id = $3", tenant, job_id, survivor
    )


async def forget_plan(tenant: TenantId, connection: Connection, *, job_id: UUID) -> None:
    """Drop what is left of a plan."""
    await connection.execute("DELETE FROM merge_plan WHERE tenant_id = $1 AND job_id = $2", tenant, job_id)


async def seen(
    tenant: TenantId, connection: Connection, *, generation: int, terms: Mapping[str, object]
) -> datetime | None:
    """Up to when changes were compared with all there was, under these very terms; None where they never were."""
    return await connection.fetchval(
        "SELECT seen FROM merge_mark WHERE tenant_id = $1 AND generation = $2 AND terms = $3",
        tenant,
        generation,
        dict(terms),
    )


async def mark_seen(
    tenant: TenantId, connection: Connection, *, generation: int, terms: Mapping[str, object], until: datetime
) -> None:
    """Record that they were, up to `until`."""
    await connection.execute(
        """
        INSERT INTO merge_mark (tenant_id, generation, terms, seen) VALUES ($1, $2, $3, $4)
        ON CONFLICT (tenant_id, generation) DO UPDATE SET terms = EXCLUDED.terms, seen = EXCLUDED.seen
        """,
        tenant,
        generation,
        dict(terms),
        until,
    )

"""When a memory was last recalled, how often, and how useful it was found."""

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

from memplane_core.contracts.markers import FeedbackCounts
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection

REST_S = 60.0
"""Recalls of a memory that follow each other faster than this, in seconds, count as one."""


def fold(last: float, touches: Sequence[float], *, now: float) -> tuple[float, int]:
    """Which of a memory's recalls count. Folding the same ones again changes nothing.

    Args:
        last: When it was last recalled, in epoch seconds.
        touches: Recalls, in epoch seconds, in any order.
        now: Latest moment that any can have happened at: a clock that is ahead moves nothing into the future.

    Returns:
        When it was last recalled now, and how many recalls counted.
    """
    count = 0
    for touch in sorted(min(touch, now) for touch in touches):
        if last < touch - REST_S:
            last = touch
            count += 1
    return last, count


async def record_access(tenant: TenantId, connection: Connection, touches: Mapping[UUID, Sequence[float]]) -> int:
    """Fold recalls into the usage rows of a tenant's memories; unknown ids are passed over.

    Args:
        tenant: Whose memories these are.
        connection: A transaction of the tenant.
        touches: By memory, moments of its recalls in epoch seconds.

    Returns:
        How many recalls counted.
    """
    rows = await connection.fetch(
        """
        SELECT memory_id, extract(epoch FROM last_accessed_at)::float8 AS last,
               extract(epoch FROM clock_timestamp())::float8 AS now
        FROM memory_usage WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[])
        ORDER BY memory_id FOR NO KEY UPDATE
        """,
        tenant,
        list(touches),
    )
    folded = {row["memory_id"]: fold(row["last"], touches[row["memory_id"]], now=row["now"]) for row in rows}
    counted = {memory_id: result for memory_id, result in folded.items() if result[1]}
    if counted:
        await connection.execute(
            """
            UPDATE memory_usage u SET last_accessed_at = to_timestamp(s.last), access_count = u.access_count + s.count
            FROM unnest($2::uuid[], $3::float8[], $4::int[]) AS s(memory_id, last, count)
            WHERE u.tenant_id = $1 AND u.memory_id = s.memory_id
            """,
            tenant,
            list(counted),
            [last for last, _ in counted.values()],
            [count for _, count in counted.values()],
        )
    return sum(count for _, count in counted.values())


async def add_feedback(
    tenant: TenantId, connection: Connection, memory_id: UUID, *, value: Literal["helpful", "not_helpful"]
) -> FeedbackCounts | None:
    """Count one more opinion of a memory; None where it is not there. The memory itself does not change."""
    row = await connection.fetchrow(
        """
        UPDATE memory_usage SET helpful = helpful + $3, not_helpful = not_helpful + $4
        WHERE tenant_id = $1 AND memory_id = $2 RETURNING memory_id AS id, helpful, not_helpful, priority
        """,
        tenant,
        memory_id,
        int(value == "helpful"),
        int(value == "not_helpful"),
    )
    return None if row is None else FeedbackCounts(**{name: row[name] for name in FeedbackCounts.__struct_fields__})


async def feedback_of(tenant: TenantId, connection: Connection, memory_id: UUID) -> FeedbackCounts | None:
    """What was said of a memory so far; None where it is not there."""
    row = await connection.fetchrow(
        "SELECT memory_id AS id, helpful, not_helpful, priority FROM memory_usage"
        " WHERE tenant_id = $1 AND memory_id = $2",
        tenant,
        memory_id,
    )
    return None if row is None else FeedbackCounts(**{name: row[name] for name in FeedbackCounts.__struct_fields__})

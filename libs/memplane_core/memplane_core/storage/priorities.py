"""Priorities moved by use and feedback: what `domain.priority` says, worked out where the numbers are."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.domain.priority import DECAY, LEAST_AGE_H, LOWEST, REST_H, PriorityRules
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection

_START: Final = UUID(int=0)

_ACTIVATION: Final = f"""
    ln((1 + u.access_count) / (1 - {DECAY})::float8)
    - {DECAY}::float8 * ln(greatest(extract(epoch FROM $4::timestamptz - m.created_at)::float8 / 3600, {LEAST_AGE_H}))
    + $6::float8 * ln((1 + u.helpful)::float8 / (1 + u.not_helpful))
"""

_DESERVED: Final = (
    f"{LOWEST} + (SELECT count(*) FROM unnest($5::float8[]) AS t(least) WHERE {_ACTIVATION} >= least)::int"
)

# What is not due costs no lock. What is due is looked at once more under it: it may have been pinned meanwhile.
_PAGE: Final = f"""
WITH page AS MATERIALIZED (
    SELECT id, pinned, created_at FROM memory WHERE tenant_id = $1 AND id > $2 AND state = 'active' ORDER BY id LIMIT $3
), due AS MATERIALIZED (
    SELECT * FROM (
        SELECT m.id, u.priority, {_DESERVED} AS goal
        FROM page m JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id
        WHERE NOT m.pinned AND (u.moved_at IS NULL OR u.moved_at <= $4::timestamptz - make_interval(secs => $7))
        OFFSET 0
    ) judged WHERE goal <> priority
)
"""

_MOVE: Final = """
, locked AS MATERIALIZED (
    SELECT m.id, d.goal, u.priority FROM due d
    JOIN memory m ON m.tenant_id = $1 AND m.id = d.id
    JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = d.id
    WHERE m.state = 'active' AND NOT m.pinned AND d.goal <> u.priority
    ORDER BY m.id FOR SHARE OF m FOR NO KEY UPDATE OF u
), moved AS (
    UPDATE memory_usage u SET priority = l.priority + sign(l.goal - l.priority)::smallint, moved_at = $4
    FROM locked l WHERE u.tenant_id = $1 AND u.memory_id = l.id
    RETURNING u.memory_id AS id, l.goal > l.priority AS up
)
"""

_WOULD: Final = ", moved AS (SELECT id, goal > priority AS up FROM due)"

_COUNT: Final = """
SELECT (SELECT count(*) FROM page) AS seen, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last,
    (SELECT count(*) FROM moved WHERE up) AS raised, (SELECT count(*) FROM moved WHERE NOT up) AS lowered,
    ARRAY(SELECT id FROM moved ORDER BY id LIMIT $8) AS sample
"""


class PrioritiesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some active memories in the order of their ids.

    Attributes:
        seen: How many there were.
        last: Where they end; None where there was none.
        raised: Those whose priority went up by one.
        lowered: Those whose priority went down by one.
        sample: Ids of some that moved.
    """

    seen: int
    last: UUID | None
    raised: int
    lowered: int
    sample: list[UUID]


async def move_priorities(
    tenant: TenantId,
    connection: Connection,
    *,
    rules: PriorityRules,
    as_of: datetime,
    after: UUID | None,
    limit: int,
    sample: int,
    dry_run: bool = False,
) -> PrioritiesPage:
    """Move the priorities of the next active memories one step each, where they are not pinned and their rest is over.

    One statement, which changes usage rows alone. Doing it again at the same moment changes nothing more.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        rules: What activation makes which priority.
        as_of: The moment at which they are judged.
        after: The last one of the page before.
        limit: How many are looked at.
        sample: Most ids in the answer.
        dry_run: Only tell which would move.
    """
    row = await connection.fetchrow(
        f"{_PAGE}{_WOULD if dry_run else _MOVE}{_COUNT}",
        tenant,
        after or _START,
        limit,
        as_of,
        list(rules.thresholds),
        rules.feedback_weight,
        REST_H * 3600,
        sample,
    )
    assert row is not None
    return PrioritiesPage(**{name: row[name] for name in PrioritiesPage.__struct_fields__})

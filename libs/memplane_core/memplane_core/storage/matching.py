"""Active memories that a filter matches, for what is done to all of them: counted, or locked page by page."""

from typing import Any
from uuid import UUID

import msgspec

from memplane_core.domain.filters import Filter
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.filter_sql import conditions, fetch_matching, needs_usage
from memplane_core.storage.memories import ALIVE
from memplane_core.storage.session import Connection


class Matching(msgspec.Struct, frozen=True):
    """How many memories match, and the first of them."""

    count: int
    sample: list[UUID]


async def count_matching(tenant: TenantId, connection: Connection, *, where: Filter, sample: int) -> Matching:
    """Count the active, living memories that `where` matches, with the ids of the first `sample`.

    Raises:
        Unavailable: The metadata of too many memories would have to be read.
    """
    values: list[Any] = [tenant, sample]
    matching = conditions(where, values)
    rows = await fetch_matching(
        tenant,
        connection,
        f"""
        WITH found AS MATERIALIZED (
            SELECT m.id FROM memory m {_usage(where)}
            WHERE m.tenant_id = $1 AND m.state = 'active' AND {ALIVE}{matching}
        )
        SELECT (SELECT count(*) FROM found) AS matches, ARRAY(SELECT id FROM found ORDER BY id LIMIT $2) AS sample
        """,
        where=where,
        values=values[1:],
    )
    return Matching(rows[0]["matches"], rows[0]["sample"])


async def lock_matching(
    tenant: TenantId, connection: Connection, *, where: Filter, after: UUID | None, limit: int
) -> list[UUID]:
    """The next active, living memories after `after` that `where` matches, in the order of their ids, locked.

    Raises:
        Unavailable: The metadata of too many memories would have to be read.
    """
    values: list[Any] = [tenant, limit, after or UUID(int=0)]
    matching = conditions(where, values)
    rows = await fetch_matching(
        tenant,
        connection,
        f"""
        SELECT m.id FROM memory m JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id
        WHERE m.tenant_id = $1 AND m.id > $3 AND m.state = 'active' AND {ALIVE}{matching}
        ORDER BY m.id LIMIT $2 FOR UPDATE OF m, u
        """,
        where=where,
        values=values[1:],
    )
    return [row["id"] for row in rows]


def _usage(where: Filter) -> str:
    return "JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id" if needs_usage(where) else ""

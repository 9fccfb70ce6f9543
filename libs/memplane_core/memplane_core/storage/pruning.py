"""Which memories are of no use any more, and which have been hidden or expired for long enough."""

from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.policy import PruneRules
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection

UNUSED_DAYS: Final = 30
"""What is pruned by when it happened was not used for so long, or for `max_idle_days` where that is less."""

_START: Final = UUID(int=0)

_USELESS: Final = """
    NOT m.pinned AND u.priority <= $3 AND greatest(u.last_accessed_at, m.updated_at) <= $4
    AND ($5::timestamptz IS NULL OR m.occurred_at <= $5)
    AND (m.expires_at IS NULL OR m.expires_at > $6)
"""


class UselessPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some active memories in the order of their ids.

    Attributes:
        seen: How many there were.
        last: Where they end; None where there was none.
        ids: Those of them that the rules give up.
    """

    seen: int
    last: UUID | None
    ids: list[UUID]


async def useless_page(
    tenant: TenantId, connection: Connection, *, rules: PruneRules, as_of: datetime, after: UUID | None, limit: int
) -> UselessPage:
    """The next active memories after `after`, and which of them the rules give up at that moment."""
    row = await connection.fetchrow(
        f"""
        WITH page AS MATERIALIZED (
            SELECT id, pinned, occurred_at, expires_at, updated_at FROM memory
            WHERE tenant_id = $1 AND id > $2 AND state = 'active' ORDER BY id LIMIT $7
        )
        SELECT (SELECT count(*) FROM page) AS seen, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last,
            ARRAY(
                SELECT m.id FROM page m JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id
                WHERE {_USELESS} ORDER BY m.id
            ) AS ids
        """,
        tenant,
        after or _START,
        *_moments(rules, as_of),
        limit,
    )
    assert row is not None
    return UselessPage(seen=row["seen"], last=row["last"], ids=row["ids"])


async def lock_useless(
    tenant: TenantId, connection: Connection, ids: list[UUID], *, rules: PruneRules, as_of: datetime
) -> list[UUID]:
    """Those of them that the rules still give up, now that nobody else can change them: in the order of their ids."""
    rows = await connection.fetch(
        f"""
        SELECT m.id FROM memory m JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id
        WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND u.memory_id = ANY($2::uuid[]) AND m.state = 'active'
          AND {_USELESS}
        ORDER BY m.id FOR UPDATE OF m, u
        """,
        tenant,
        ids,
        *_moments(rules, as_of),
    )
    return [row["id"] for row in rows]


def _moments(rules: PruneRules, as_of: datetime) -> tuple[int, datetime, datetime | None, datetime]:
    """The arguments 3 to 6: highest priority, last use or change, last happening, and the moment itself."""
    idle = as_of - timedelta(days=rules.max_idle_days)
    if rules.age_by == "accessed":
        return rules.max_priority, idle, None, as_of
    return rules.max_priority, as_of - timedelta(days=min(rules.max_idle_days, UNUSED_DAYS)), idle, as_of


Over = Literal["purge", "expire"]

_OVER: Final = {
    "purge": "state <> 'active' AND purge_at IS NOT NULL AND purge_at <= $2",
    "expire": "expires_at IS NOT NULL AND expires_at <= $2",
}
_PLACE: Final = {"purge": "purge_at", "expire": "expires_at"}


class OverPage(msgspec.Struct, frozen=True):
    """Memories whose time is over.

    Attributes:
        ids: In their order, locked.
        more: There may be others.
    """

    ids: list[UUID]
    more: bool


async def lock_over(tenant: TenantId, connection: Connection, *, why: Over, until: datetime, limit: int) -> OverPage:
    """Memories whose time is over, those over for longest first.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        why: `purge`: hidden, with a `purge_at` up to `until`. `expire`: with an `expires_at` up to it.
        until: See there.
        limit: Most of them.
    """
    found = await connection.fetch(
        f"SELECT id FROM memory WHERE tenant_id = $1 AND {_OVER[why]} ORDER BY {_PLACE[why]}, id LIMIT $3",
        tenant,
        until,
        limit,
    )
    # Fewer, where some were restored during the wait: that says nothing of those behind them.
    locked = await connection.fetch(
        f"SELECT id FROM memory WHERE tenant_id = $1 AND {_OVER[why]} AND id = ANY($3::uuid[]) ORDER BY id FOR UPDATE",
        tenant,
        until,
        [row["id"] for row in found],
    )
    return OverPage([row["id"] for row in locked], more=len(found) == limit)


class OverCount(msgspec.Struct, frozen=True):
    """How many memories' time is over, and the ids of some."""

    count: int
    sample: list[UUID]


async def count_over(tenant: TenantId, connection: Connection, *, why: Over, until: datetime, sample: int) -> OverCount:
    """How many there are that `lock_over` would give, one after the other."""
    row = await connection.fetchrow(
        f"""
        SELECT (SELECT count(*) FROM memory WHERE tenant_id = $1 AND {_OVER[why]}) AS found, ARRAY(
            SELECT id FROM memory WHERE tenant_id = $1 AND {_OVER[why]} ORDER BY {_PLACE[why]}, id LIMIT $3) AS sample
        """,
        tenant,
        until,
        sample,
    )
    assert row is not None
    return OverCount(row["found"], row["sample"])


async def is_any_over(tenant: TenantId, connection: Connection, *, why: Over, until: datetime) -> bool:
    """Whether there is one."""
    return bool(
        await connection.fetchval(
            f"SELECT EXISTS (SELECT FROM memory WHERE tenant_id = $1 AND {_OVER[why]})", tenant, until
        )
    )

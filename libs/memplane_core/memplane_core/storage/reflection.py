"""Which memories wait to be scored or reflected upon, and how far that has come for whom."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.memories import ALIVE, holding
from memplane_core.storage.session import Connection, Row

INSIGHT: Final = "insight"
"""`memory_type` of what a reflection has come to."""

SOURCE: Final = "reflection"
"""Its `source`."""

# Of whoever is being erased nothing can be written, and nothing needs to be asked.
_OPEN: Final = f"""
    m.tenant_id = $1 AND m.state = 'active' AND {ALIVE} AND NOT EXISTS (
        SELECT FROM erasure e WHERE e.tenant_id = $1 AND e.state = 'running'
          AND (e.user_id IS NULL OR e.user_id = m.user_id) AND (e.agent_id IS NULL OR e.agent_id = m.agent_id))
"""

# Looked up by its key for each memory: a join is planned as a loop over all of `reflection` where nothing is known of
# the tables yet. No id is empty. CASE, for under row-level security COALESCE keeps an index from being used.
_NOT_SEEN: Final = f"""
    memory m LEFT JOIN LATERAL (
        SELECT seen_at, seen_id FROM reflection
        WHERE tenant_id = $1 AND user_id = CASE WHEN m.user_id IS NULL THEN '' ELSE m.user_id END
          AND agent_id = CASE WHEN m.agent_id IS NULL THEN '' ELSE m.agent_id END LIMIT 1
    ) r ON true
    WHERE {_OPEN}{holding("now", [])} AND NOT (m.memory_type = '{INSIGHT}' AND m.source IS NOT DISTINCT FROM '{SOURCE}')
      AND m.created_at <= $2 AND (r.seen_at IS NULL OR (m.created_at, m.id) > (r.seen_at, r.seen_id))
"""


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A memory as a language model is shown it.

    Attributes:
        version: That it had when it was read.
        rev: Of what is found of it, which grows when its text is changed.
    """

    id: UUID
    content: str
    actor: str | None
    occurred_at: datetime
    created_at: datetime
    importance: float
    version: int
    rev: int


class Whose(msgspec.Struct, frozen=True):
    """A user and an agent; None is nobody's."""

    user_id: str | None
    agent_id: str | None


class Gathered(msgspec.Struct, frozen=True):
    """Whose memories there are to reflect upon, how many, and the sum of their importance."""

    whose: Whose
    memories: int
    importance: float


class GatheredPage(msgspec.Struct, frozen=True):
    """What some memories come to; `last` of them in the order of ids, None where none are left behind them."""

    gathered: list[Gathered]
    last: UUID | None


class Sources(msgspec.Struct, frozen=True):
    """Memories to reflect upon next; `importance` is that of all there are, also of those left for later."""

    texts: list[Text]
    importance: float


async def age_s(tenant: TenantId, connection: Connection, *, since: datetime) -> float:
    """Seconds that have passed since a moment of the database's clock."""
    del tenant
    return float(
        await connection.fetchval("SELECT extract(epoch FROM clock_timestamp() - $1::timestamptz)::float8", since)
    )


async def unscored_page(
    tenant: TenantId, connection: Connection, *, until: datetime, after: UUID | None, limit: int
) -> list[Text]:
    """Memories made up to `until` whose importance a model is to say, in the order of their ids behind `after`."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM memory m
        WHERE {_OPEN} AND m.unscored AND m.created_at <= $2 AND ($3::uuid IS NULL OR m.id > $3)
        ORDER BY m.id LIMIT $4
        """,
        tenant,
        until,
        after,
        limit,
    )
    return [_text(row) for row in rows]


async def pass_over(tenant: TenantId, connection: Connection, texts: Sequence[Text]) -> None:
    """Ask no model about these again, unless they were changed meanwhile: their importance stays a guess."""
    await connection.execute(
        """
        UPDATE memory m SET unscored = false FROM unnest($2::uuid[], $3::int[]) AS i(id, version)
        WHERE m.tenant_id = $1 AND m.id = i.id AND m.version = i.version
        """,
        tenant,
        [text.id for text in texts],
        [text.version for text in texts],
    )


async def count_unscored(tenant: TenantId, connection: Connection, *, until: datetime) -> int:
    """How many memories made up to `until` a model is to say the importance of."""
    return int(
        await connection.fetchval(
            f"SELECT count(*) FROM memory m WHERE {_OPEN} AND m.unscored AND m.created_at <= $2", tenant, until
        )
    )


async def gathered_page(
    tenant: TenantId, connection: Connection, *, until: datetime, after: UUID | None, limit: int
) -> GatheredPage:
    """Add up the next `limit` memories behind `after`: those made up to `until` that nobody has reflected upon."""
    last = await connection.fetchval(
        """
        SELECT id FROM memory WHERE tenant_id = $1 AND ($2::uuid IS NULL OR id > $2)
        ORDER BY id OFFSET $3::bigint - 1 LIMIT 1
        """,
        tenant,
        after,
        limit,
    )
    rows = await connection.fetch(
        f"""
        SELECT m.user_id, m.agent_id, count(*) AS memories, sum(m.importance) AS importance FROM {_NOT_SEEN}
          AND ($3::uuid IS NULL OR m.id > $3) AND ($4::uuid IS NULL OR m.id <= $4)
        GROUP BY m.user_id, m.agent_id
        """,
        tenant,
        until,
        after,
        last,
    )
    gathered = [Gathered(Whose(row["user_id"], row["agent_id"]), row["memories"], row["importance"]) for row in rows]
    return GatheredPage(gathered, last)


async def sources_of(tenant: TenantId, connection: Connection, whose: Whose, *, until: datetime, limit: int) -> Sources:
    """The next memories of somebody to reflect upon, those first that were made first."""
    user = "m.user_id IS NULL AND $3::text IS NULL" if whose.user_id is None else "m.user_id = $3"
    agent = "m.agent_id IS NULL AND $4::text IS NULL" if whose.agent_id is None else "m.agent_id = $4"
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS}, sum(m.importance) OVER () AS gathered FROM {_NOT_SEEN} AND {user} AND {agent}
        ORDER BY m.created_at, m.id LIMIT $5
        """,
        tenant,
        until,
        whose.user_id,
        whose.agent_id,
        limit,
    )
    return Sources([_text(row) for row in rows], rows[0]["gathered"] if rows else 0.0)


async def unchanged(tenant: TenantId, connection: Connection, texts: Sequence[Text]) -> bool:
    """Whether all of these can be seen and say what they said; if so they stay until the transaction ends."""
    rows = await connection.fetch(
        f"""
        SELECT m.id FROM memory m
        JOIN unnest($2::uuid[], $3::int[]) AS i(id, rev) ON m.tenant_id = $1 AND m.id = i.id AND m.rev = i.rev
        WHERE m.state = 'active' AND {ALIVE}{holding("now", [])}
        ORDER BY m.id FOR SHARE OF m
        """,
        tenant,
        [text.id for text in texts],
        [text.rev for text in texts],
    )
    return len(rows) == len(texts)


async def mark_seen(tenant: TenantId, connection: Connection, whose: Whose, *, last: Text) -> None:
    """From now on only what was made after `last` is still to be reflected upon."""
    await connection.execute(
        """
        INSERT INTO reflection (tenant_id, user_id, agent_id, seen_at, seen_id) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (tenant_id, user_id, agent_id)
        DO UPDATE SET seen_at = excluded.seen_at, seen_id = excluded.seen_id
        """,
        tenant,
        whose.user_id or "",
        whose.agent_id or "",
        last.created_at,
        last.id,
    )


_COLUMNS: Final = ", ".join(f"m.{name}" for name in Text.__struct_fields__)


def _text(row: Row) -> Text:
    return Text(**{name: row[name] for name in Text.__struct_fields__})

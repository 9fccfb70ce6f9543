"""What Postgres says the index ought to hold, what it says of keys that the index holds, and how both are mended."""

from collections.abc import Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.index import IndexKey
from memplane_core.domain.memory import head_of
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.text import terms
from memplane_core.storage.outbox import OR_AGAIN
from memplane_core.storage.refill import ExpectedMemory, Page
from memplane_core.storage.session import Connection
from memplane_core.storage.words import Owner, Words, replace_words

MOST_CHUNKS: Final = 10_000
"""More than any memory has: a key with a higher number was made by nobody here."""

_START: Final = UUID(int=0)

# Rows are looked up one by one. Where the planner may choose it reads a partition, with other tenants' rows; and just
# after a large import, knowing nothing of the table yet, it goes through the whole outbox for each row.
_BY_KEY: Final = "OFFSET 0"

_WAITING: Final = f"""
    SELECT true AS waits FROM outbox
    WHERE tenant_id = $1 AND memory_id = r.memory_id AND generation = $2 AND rev = r.rev AND op || '' = 'upsert'
      AND done_at IS NULL {_BY_KEY}
"""
"""Of `r(memory_id, rev)`: whether the index is still to be told of it, or can never hold it."""


async def still_settled(
    tenant: TenantId, connection: Connection, memories: Sequence[ExpectedMemory], *, generation: int
) -> frozenset[UUID]:
    """Which of them are as they were read: those that `refill.queue_again` would queue."""
    rows = await connection.fetch(
        f"""
        SELECT r.memory_id AS id FROM unnest($3::uuid[], $4::int[]) AS r(memory_id, rev)
        CROSS JOIN LATERAL (
            SELECT FROM memory m
            WHERE m.tenant_id = $1 AND m.id = r.memory_id AND m.rev = r.rev AND m.state = 'active' {_BY_KEY}
        ) m
        LEFT JOIN LATERAL ({_WAITING}) w ON true
        WHERE w.waits IS NULL
        """,
        tenant,
        generation,
        [memory.memory_id for memory in memories],
        [memory.rev for memory in memories],
    )
    return frozenset(row["id"] for row in rows)


async def queue_all_page(
    tenant: TenantId, connection: Connection, *, generation: int, after: UUID | None, limit: int
) -> Page:
    """Have the next active memories sent again, whatever the outbox says that the index holds.

    What is pending stays so, and what can never be indexed is left alone.
    """
    row = await connection.fetchrow(
        f"""
        WITH page AS MATERIALIZED (
            SELECT id AS memory_id, rev FROM memory WHERE tenant_id = $1 AND id > $3 AND state = 'active'
            ORDER BY id LIMIT $4
        ), queued AS (
            INSERT INTO outbox AS o (tenant_id, generation, memory_id, rev, op)
            SELECT $1, $2, r.memory_id, r.rev, 'upsert' FROM page r
            LEFT JOIN LATERAL ({_WAITING}) w ON true
            WHERE w.waits IS NULL
            ORDER BY r.memory_id
            ON CONFLICT (tenant_id, memory_id, generation, rev, op) DO UPDATE
            SET attempts = 0, done_at = NULL, error = NULL, not_before = clock_timestamp(), fresh_until = 'infinity'
            WHERE o.done_at IS NOT NULL
        )
        SELECT count(*) AS seen, (SELECT memory_id FROM page ORDER BY memory_id DESC LIMIT 1) AS last FROM page
        """,
        tenant,
        generation,
        after or _START,
        limit,
    )
    assert row is not None
    return Page(row["last"], row["seen"])


Verdict = Literal["behind", "unknown"]


class StaleKey(msgspec.Struct, frozen=True):
    """A key in the index that is no chunk of a memory as it is now.

    Attributes:
        verdict: `behind` where its memory is gone, hidden, or at a later revision: it can never be right again.
            `unknown` where its revision is the current one or a later one, and Postgres has no such chunk: it was
            stored by nobody here, or Postgres was put back to an earlier state, and a later write may take that key.
    """

    key: IndexKey
    verdict: Verdict


async def stale_keys(
    tenant: TenantId, connection: Connection, keys: Sequence[IndexKey], *, generation: int
) -> list[StaleKey]:
    """Which of these keys the index ought not to hold, but for those that the outbox is about to remove.

    The keys must have been read from the index before: what it holds was committed here before it was sent there.
    """
    rows = await connection.fetch(
        f"""
        SELECT k.memory_id, k.rev, k.n,
               (m.rev IS NULL OR m.rev > k.rev) AND k.rev BETWEEN 0 AND {2**31 - 1} AND k.n BETWEEN 0 AND {MOST_CHUNKS}
                   AS behind
        FROM unnest($3::uuid[], $4::numeric[], $5::numeric[]) AS k(memory_id, rev, n)
        LEFT JOIN LATERAL (
            SELECT rev FROM memory WHERE tenant_id = $1 AND id = k.memory_id AND state = 'active' {_BY_KEY}
        ) m ON true
        LEFT JOIN LATERAL (
            SELECT true AS is_right FROM chunk
            WHERE tenant_id = $1 AND memory_id = k.memory_id AND generation = $2 AND n = k.n AND rev = k.rev
              AND rev = m.rev AND embedding IS NOT NULL {_BY_KEY}
        ) c ON true
        LEFT JOIN LATERAL (
            SELECT true AS goes FROM outbox
            WHERE tenant_id = $1 AND memory_id = k.memory_id AND generation = $2 AND rev = k.rev
              AND op || '' = 'delete' AND done_at IS NULL AND chunks > k.n {_BY_KEY}
        ) o ON true
        WHERE c.is_right IS NULL AND o.goes IS NULL
        """,
        tenant,
        generation,
        [key.memory_id for key in keys],
        [key.rev for key in keys],
        [key.n for key in keys],
    )
    return [
        StaleKey(
            IndexKey(UUID(int=row["memory_id"].int), int(row["rev"]), int(row["n"])),
            "behind" if row["behind"] else "unknown",
        )
        for row in rows
    ]


async def queue_removals(
    tenant: TenantId, connection: Connection, keys: Sequence[IndexKey], *, generation: int
) -> None:
    """Queue keys for removal from the index, but for those that could become right: see `StaleKey.verdict`."""
    chunks: dict[tuple[UUID, int], int] = {}
    for key in keys:
        place = (key.memory_id, key.rev)
        chunks[place] = max(chunks.get(place, 0), key.n + 1)
    places = sorted(chunks)
    await connection.execute(
        f"""
        INSERT INTO outbox AS o (tenant_id, generation, memory_id, rev, op, chunks)
        SELECT $1, $2, r.memory_id, r.rev, 'delete', r.chunks
        FROM unnest($3::uuid[], $4::int[], $5::int[]) AS r(memory_id, rev, chunks)
        WHERE NOT EXISTS (
            SELECT FROM memory m
            WHERE m.tenant_id = $1 AND m.id = r.memory_id AND m.rev <= r.rev AND m.state = 'active')
        {OR_AGAIN}
        """,
        tenant,
        generation,
        [memory_id for memory_id, _ in places],
        [rev for _, rev in places],
        [chunks[place] for place in places],
    )


class WordlessPage(msgspec.Struct, frozen=True):
    """Some active memories in the order of their ids.

    Attributes:
        page: How many there were, and where they end.
        wordless: Those of them that cannot be found by words.
    """

    page: Page
    wordless: list[UUID]


async def wordless_page(tenant: TenantId, connection: Connection, *, after: UUID | None, limit: int) -> WordlessPage:
    """The next active memories after `after`."""
    rows = await connection.fetch(
        """
        SELECT m.id, w.memory_id IS NULL AS wordless
        FROM (SELECT id FROM memory WHERE tenant_id = $1 AND id > $2 AND state = 'active' ORDER BY id LIMIT $3) m
        LEFT JOIN memory_words w ON w.tenant_id = $1 AND w.memory_id = m.id
        ORDER BY m.id
        """,
        tenant,
        after or _START,
        limit,
    )
    page = Page(rows[-1]["id"] if rows else None, len(rows))
    return WordlessPage(page, [row["id"] for row in rows if row["wordless"]])


async def restore_words(tenant: TenantId, connection: Connection, memory_ids: Sequence[UUID]) -> None:
    """Give memories their words anew. They stay locked until the transaction ends, so that no edit comes between."""
    rows = await connection.fetch(
        """
        SELECT id, content, actor, user_id, agent_id, session_id, occurred_at FROM memory
        WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND state = 'active'
        ORDER BY id FOR NO KEY UPDATE
        """,
        tenant,
        memory_ids,
    )
    words = [
        Words(
            memory_id=row["id"],
            terms=terms(head_of(row["actor"], row["occurred_at"]) + row["content"]),
            owner=Owner(row["user_id"], row["agent_id"], row["session_id"]),
        )
        for row in rows
    ]
    await replace_words(tenant, connection, words)


async def mark_absent(tenant: TenantId, connection: Connection, *, generation: int) -> None:
    """Record that a collection is not there any more: searches do without it until the drain has made it anew."""
    await connection.execute(
        "UPDATE generation SET state = 'absent' WHERE tenant_id = $1 AND number = $2", tenant, generation
    )


async def has_memories(tenant: TenantId, connection: Connection) -> bool:
    """Whether the tenant has any active memory."""
    return bool(
        await connection.fetchval(
            "SELECT EXISTS (SELECT FROM memory WHERE tenant_id = $1 AND state = 'active')", tenant
        )
    )


class KnownTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as this database knows it.

    Attributes:
        deleted: It is gone.
        numbers: Of all generations that it ever had.
        gone: Those of them whose collections are of no more use.
        idle_s: Seconds since a job of the kind `reconcile` was last asked for, or the tenant was made.
    """

    deleted: bool
    numbers: list[int]
    gone: list[int]
    idle_s: float

    def has_lost(self, number: int) -> bool:
        """Whether a collection of that number is of no more use: every one of a tenant that is gone."""
        return self.deleted or number in self.gone


async def known_tenant(tenant: TenantId, connection: Connection) -> KnownTenant | None:
    """The tenant, also where it is gone; None where there never was one of that id."""
    row = await connection.fetchrow(
        """
        SELECT t.deleted_at IS NOT NULL AS deleted,
            ARRAY(SELECT number FROM generation WHERE tenant_id = $1) AS numbers,
            ARRAY(SELECT number FROM generation g WHERE g.tenant_id = $1
                AND g.life = 'dropped') AS gone,
            extract(epoch FROM clock_timestamp() - coalesce(
                (SELECT max(created_at) FROM job WHERE tenant_id = $1 AND kind = 'reconcile'), t.created_at))::float8
                AS idle_s
        FROM tenant t WHERE t.id = $1
        """,
        tenant,
    )
    return None if row is None else KnownTenant(**{name: row[name] for name in KnownTenant.__struct_fields__})

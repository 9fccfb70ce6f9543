"""Merging memories into one, and taking that back.

Those that are merged away are hidden like what is forgotten, with all that is theirs. What the one that stays has taken
is kept on its own row (`domain.merge_ledger`), and is gone with it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from memplane_core.domain.merge_ledger import Balance, Ledger, Standing, absorb, bring_anew, give_back
from memplane_core.domain.merging import Candidate
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.markers import Author, hide, unhide
from memplane_core.storage.memory_writes import PlaceTakenError
from memplane_core.storage.session import Connection, Row

ABSORBED: Final = "absorbed"
"""Event in the history of the memory that stays: others were merged into it."""

GAVE_BACK: Final = "gave_back"
"""The same, when others were restored."""


class Mergeable(msgspec.Struct, frozen=True, kw_only=True):
    """A memory as far as merging goes, locked until the transaction ends.

    Attributes:
        expired: By the database's clock.
        candidate: What is weighed of it.
    """

    id: UUID
    state: str
    merged_into: UUID | None
    rev: int
    user_id: str | None
    agent_id: str | None
    memory_type: str
    valid_from: datetime | None
    valid_to: datetime | None
    expired: bool
    candidate: Candidate
    standing: Standing
    ledger: Ledger | None

    @property
    def alive(self) -> bool:
        """Whether it can be seen."""
        return self.state == "active" and not self.expired

    def holds_with(self, other: "Mergeable") -> bool:
        """Whether what both say was so at the same time."""
        return (self.valid_from, self.valid_to) == (other.valid_from, other.valid_to)


async def lock(tenant: TenantId, connection: Connection, ids: Collection[UUID]) -> dict[UUID, Mergeable]:
    """Those of these memories that exist, in whatever state, locked in the order of their ids with their usage."""
    rows = await connection.fetch(
        """
        SELECT m.id, m.state, m.merged_into, m.rev, m.user_id, m.agent_id, m.memory_type, m.pinned, m.scene,
            m.importance, m.expires_at, m.valid_from, m.valid_to, m.created_at, m.merges,
            char_length(m.content) AS length,
            coalesce(m.expires_at <= statement_timestamp(), false) AS expired,
            u.priority, u.access_count, u.helpful, u.not_helpful, u.last_accessed_at
        FROM memory m JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id
        WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND u.memory_id = ANY($2::uuid[])
        ORDER BY m.id FOR UPDATE OF m, u
        """,
        tenant,
        list(ids),
    )
    return {row["id"]: _mergeable(row) for row in rows}


def _mergeable(row: Row) -> Mergeable:
    return Mergeable(
        candidate=candidate_of(row),
        standing=Standing(
            scene=row["scene"],
            importance=row["importance"],
            priority=row["priority"],
            last_accessed_at=row["last_accessed_at"],
            uses=row["access_count"],
            helpful=row["helpful"],
            not_helpful=row["not_helpful"],
        ),
        ledger=None if row["merges"] is None else msgspec.convert(row["merges"], Ledger),
        **{
            name: row[name]
            for name in (
                "id",
                "state",
                "merged_into",
                "rev",
                "user_id",
                "agent_id",
                "memory_type",
                "valid_from",
                "valid_to",
                "expired",
            )
        },
    )


def candidate_of(row: Row) -> Candidate:
    """What is weighed of a memory, from a row with these columns."""
    return Candidate(
        id=row["id"],
        pinned=row["pinned"],
        expires_at=row["expires_at"],
        priority=row["priority"],
        importance=row["importance"],
        uses=row["access_count"],
        length=row["length"],
        created_at=row["created_at"],
        scene=tuple(row["scene"]),
    )


class Joining(msgspec.Struct, frozen=True, kw_only=True):
    """One memory that is to stand for others, all of them locked and active.

    Attributes:
        fixed: The survivor's fields stay as they are: it only counts their uses.
    """

    survivor: Mergeable
    others: Sequence[Mergeable]
    fixed: bool = False


async def merge(
    tenant: TenantId, connection: Connection, joinings: Sequence[Joining], *, purge_at: datetime, author: Author
) -> None:
    """Let memories stand for others.

    A survivor keeps its text. It gets their scenes, the sum of their uses and of what was said of them, and the latest
    access, the greatest importance and the greatest priority of all. They keep everything, and can be restored.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        joinings: No memory is in two of them.
        purge_at: When those that are merged away may be deleted for good.
        author: For the history.
    """
    into = {other.id: its.survivor.id for its in joinings for other in its.others}
    before: dict[UUID, frozenset[UUID]] = {}
    for its in joinings:
        if its.survivor.ledger:
            before[its.survivor.id] = await _merged_into(tenant, connection, its.survivor.id)
    await hide(tenant, connection, list(into), state="merged", purge_at=purge_at, author=author, merged_into=into)
    changes: list[_Change] = []
    for its in joinings:
        now, ledger = its.survivor.standing, its.survivor.ledger
        brought = [(other.id, other.standing) for other in its.others]
        balance = absorb(now, ledger, brought, merged=before.get(its.survivor.id, ()), fixed=its.fixed)
        changes.append(_Change(its.survivor, balance, ABSORBED, [other.id for other in its.others]))
    await _store(tenant, connection, changes, author=author)


async def restore(tenant: TenantId, connection: Connection, ids: Collection[UUID], *, author: Author) -> list[UUID]:
    """Bring back memories that were merged away, as they were; those that stood for them give back what they took.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        ids: Of the memories; those that are not merged are passed over.
        author: For the history.

    Returns:
        Those that are back, in the order of their ids.

    Raises:
        DuplicateMemory, QuotaExceeded: See `markers.unhide`.
        PlaceTakenError: Others were merged or restored just now: look again.
    """
    chain = await _chains(tenant, connection, ids)
    locked = await lock(tenant, connection, chain)
    if any(chain[its.id] != its.merged_into for its in locked.values()):
        raise PlaceTakenError
    back = await unhide(tenant, connection, list(dict.fromkeys(ids)), state="merged", author=author)
    returned: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for memory_id in back:
        if (into := locked[memory_id].merged_into) is not None and into in locked:
            returned[into].append(memory_id)
    await _give_back(tenant, connection, locked, returned, author=author)
    return back


async def merged_into(tenant: TenantId, connection: Connection, survivor: UUID, *, limit: int) -> list[UUID]:
    """Memories that were merged into one and are not restored, in the order of their ids."""
    rows = await connection.fetch(
        "SELECT id FROM memory WHERE tenant_id = $1 AND merged_into = $2 AND state = 'merged' ORDER BY id LIMIT $3",
        tenant,
        survivor,
        limit,
    )
    return [row["id"] for row in rows]


async def _give_back(
    tenant: TenantId,
    connection: Connection,
    locked: Mapping[UUID, Mergeable],
    returned: Mapping[UUID, Sequence[UUID]],
    *,
    author: Author,
) -> None:
    """One that stood for others may have been merged itself: what it gives back, the next one gives back too."""
    changed: defaultdict[UUID | None, dict[UUID, Standing]] = defaultdict(dict)
    heights = _heights(locked)
    for memory_id in sorted(locked, key=lambda its: (-heights[its], its)):
        its = locked[memory_id]
        ids = returned.get(memory_id, ())
        anew = {child: standing for child, standing in changed[memory_id].items() if child not in ids}
        if its.ledger is None or not (ids or anew):
            continue
        merged = await _merged_into(tenant, connection, memory_id)
        balance = give_back(its.standing, its.ledger, ids, merged=merged)
        for child, standing in anew.items():
            if balance.ledger is not None:
                balance = bring_anew(balance.standing, balance.ledger, child, standing, merged=merged)
        await _store(tenant, connection, [_Change(its, balance, GAVE_BACK, ids)], author=author)
        changed[its.merged_into][memory_id] = balance.standing


def _heights(locked: Mapping[UUID, Mergeable]) -> dict[UUID, int]:
    """How many each was merged into, one into the other. Imports can make rings: one is cut somewhere."""
    heights: dict[UUID, int] = {}
    for start in locked:
        path: dict[UUID, None] = {}
        at: UUID | None = start
        while at is not None and at in locked and at not in heights and at not in path:
            path[at] = None
            at = locked[at].merged_into
        height = heights.get(at, -1) if at is not None else -1
        for memory_id in reversed(path):
            height += 1
            heights[memory_id] = height
    return heights


async def _chains(tenant: TenantId, connection: Connection, ids: Collection[UUID]) -> dict[UUID, UUID | None]:
    """These memories, what they were merged into, what that was merged into, ...: each with where it leads."""
    rows = await connection.fetch(
        """
        WITH RECURSIVE up AS (
            SELECT id, merged_into FROM memory WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND state = 'merged'
            UNION
            SELECT m.id, m.merged_into FROM up JOIN memory m ON m.tenant_id = $1 AND m.id = up.merged_into
        )
        SELECT id, merged_into FROM up
        """,
        tenant,
        list(ids),
    )
    return {row["id"]: row["merged_into"] for row in rows}


async def _merged_into(tenant: TenantId, connection: Connection, survivor: UUID) -> frozenset[UUID]:
    return frozenset(await merged_into(tenant, connection, survivor, limit=2**31 - 1))


class _Change(msgspec.Struct, frozen=True):
    """What becomes of a memory that others were merged into, or were taken from."""

    before: Mergeable
    balance: Balance
    event: str
    ids: Sequence[UUID]

    def record(self) -> dict[str, Any]:
        """Its columns."""
        after, ledger = self.balance.standing, self.balance.ledger
        changes = {**_old_values(self.before.standing, after), "memories": [str(memory_id) for memory_id in self.ids]}
        return {
            "id": self.before.id,
            **msgspec.structs.asdict(after),
            "merges": None if ledger is None else msgspec.Raw(exact_json(msgspec.to_builtins(ledger))),
            "event": self.event,
            "changes": msgspec.Raw(exact_json(changes)),
        }


_STORE: Final = """
WITH input AS (
    SELECT * FROM json_to_recordset($2::json) AS r(
        id uuid, scene text[], importance float8, merges jsonb, priority smallint, uses bigint, helpful int,
        not_helpful int, last_accessed_at timestamptz, event text, changes jsonb)
), changed AS (
    UPDATE memory m SET scene = i.scene, importance = i.importance, merges = i.merges, version = m.version + 1,
        updated_at = clock_timestamp()
    FROM input i WHERE m.tenant_id = $1 AND m.id = i.id
    RETURNING m.id, m.version, i.event, i.changes
), used AS (
    UPDATE memory_usage u SET priority = i.priority, access_count = i.uses, helpful = i.helpful,
        not_helpful = i.not_helpful, last_accessed_at = i.last_accessed_at
    FROM input i WHERE u.tenant_id = $1 AND u.memory_id = i.id
), scenes_left AS (
    DELETE FROM memory_scene s USING input i
    WHERE s.tenant_id = $1 AND s.memory_id = i.id AND NOT s.scene = ANY (i.scene)
), scenes_entered AS (
    INSERT INTO memory_scene (tenant_id, memory_id, scene)
    SELECT DISTINCT $1::uuid, id, tag FROM input, unnest(scene) AS tag
    ON CONFLICT DO NOTHING
)
INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
SELECT $1, id, version, event, $3, $4, changes FROM changed
"""


async def _store(tenant: TenantId, connection: Connection, changes: Sequence[_Change], *, author: Author) -> None:
    records = msgspec.json.encode([change.record() for change in changes]).decode()
    await connection.execute(_STORE, tenant, records, author.key_id, author.request_id)


def _old_values(before: Standing, after: Standing) -> dict[str, Any]:
    names = {"uses": "access_count"}
    old = {field: getattr(before, field) for field in Standing.__struct_fields__}
    return {
        names.get(field, field): value.isoformat() if isinstance(value, datetime) else value
        for field, value in old.items()
        if value != getattr(after, field)
    }

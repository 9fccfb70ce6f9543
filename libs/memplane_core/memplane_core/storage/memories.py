"""Reading memories."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.validity import ValidAt
from memplane_core.storage.session import Connection, Row

COLUMNS: Final = """
    m.id, m.external_id, m.content, m.actor, m.scene, m.source, m.memory_type, m.user_id, m.agent_id, m.session_id,
    m.importance, u.priority, m.pinned, m.metadata, m.occurred_at, m.expires_at, m.valid_from, m.valid_to,
    m.superseded_by, m.created_at, m.updated_at, u.last_accessed_at, u.access_count, m.version, m.state, m.merged_into,
    m.purge_at,
    CASE WHEN o.failed_at IS NOT NULL THEN 'failed' WHEN o.memory_id IS NOT NULL AND o.done_at IS NULL THEN 'pending'
         ELSE 'indexed' END AS index_state,
    o.error AS index_error
"""

# The outbox row of the newest revision says whether the index knows it; once trimmed, it does. It is found by its key:
# spelled so, no partial index on `op` fits, which a planner without statistics would walk for each memory (0.7 against
# 4 to 14 ms for ten memories among 10,000).
SOURCE: Final = """
    memory m
    JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id
    LEFT JOIN outbox o ON o.tenant_id = m.tenant_id AND o.memory_id = m.id AND o.rev = m.rev AND o.op || '' = 'upsert'
        AND o.generation = (SELECT active_generation FROM tenant WHERE id = $1)
"""

ALIVE: Final = "(m.expires_at IS NULL OR m.expires_at > statement_timestamp())"
"""Not `now()`, which is the transaction's start; and not `clock_timestamp()`, which no index can be searched by."""


def holding(valid_at: ValidAt, values: list[Any]) -> str:
    """What holds at a moment, as " AND (...)" on `memory m`; "" for everything.

    Args:
        valid_at: The moment.
        values: Arguments of the statement. A moment that was named is appended.
    """
    if valid_at == "any":
        return ""
    at = "statement_timestamp()"
    if valid_at != "now":
        values.append(valid_at)
        at = f"${len(values)}::timestamptz"
    return f" AND (m.valid_from IS NULL OR m.valid_from <= {at}) AND (m.valid_to IS NULL OR m.valid_to > {at})"


_REVISION: Final = f"""
    {COLUMNS}, m.rev, m.occurred_given, m.dedup_key, m.unscored,
    m.expires_at IS NOT NULL AND m.expires_at <= statement_timestamp() AS expired
"""


class Name(msgspec.Struct, frozen=True):
    """What a caller calls a memory: `external_id` within its user and agent."""

    external_id: str
    user_id: str | None
    agent_id: str | None


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A memory with what its record does not show.

    Attributes:
        rev: Revision of its indexed form.
        occurred_given: False where `occurred_at` is only the time of writing.
        dedup_key: None where it may have twins.
        unscored: Nobody gave its importance, and a language model is to say what it is.
        expired: By the database's clock.
    """

    memory: Memory
    rev: int
    occurred_given: bool
    dedup_key: bytes | None
    unscored: bool
    expired: bool


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a memory stands towards a search.

    Attributes:
        expired: By the database's clock.
        holds: What it says is so at the moment asked for.
    """

    memory: Memory
    expired: bool
    holds: bool


def memory_of(row: Row) -> Memory:
    """A memory from a row of `COLUMNS`."""
    return Memory(**{name: row[name] for name in Memory.__struct_fields__})


async def read(
    tenant: TenantId,
    connection: Connection,
    ids: Sequence[UUID],
    *,
    also_expired: bool = False,
    valid_at: ValidAt = "any",
) -> dict[UUID, Memory]:
    """The memories of these ids that exist and have not expired, whatever their state.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        ids: Of the memories.
        also_expired: Expired ones too, for the answer to the request that made them so.
        valid_at: Only those that hold then.
    """
    alive = "" if also_expired else f"AND {ALIVE}"
    values: list[Any] = [tenant, ids]
    held = holding(valid_at, values)
    # The ids for both tables: from the join alone the planner takes to reading the whole of the tenant's usage.
    rows = await connection.fetch(
        f"""
        SELECT {COLUMNS} FROM {SOURCE}
        WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND u.memory_id = ANY($2::uuid[]) {alive}{held}
        """,
        *values,
    )
    return {row["id"]: memory_of(row) for row in rows}


async def read_standing(
    tenant: TenantId, connection: Connection, memory_id: UUID, *, valid_at: ValidAt
) -> Standing | None:
    """One memory that exists, hidden and expired ones too, and whether it holds at a moment."""
    values: list[Any] = [tenant, memory_id]
    row = await connection.fetchrow(
        f"""
        SELECT {COLUMNS}, NOT {ALIVE} AS expired, true {holding(valid_at, values)} AS holds FROM {SOURCE}
        WHERE m.tenant_id = $1 AND m.id = $2
        """,
        *values,
    )
    return Standing(memory=memory_of(row), expired=row["expired"], holds=row["holds"]) if row else None


async def read_revision(
    tenant: TenantId, connection: Connection, memory_id: UUID, *, lock: bool = False
) -> Revision | None:
    """One memory that exists and has not expired; `lock` keeps others from changing it until the transaction ends.

    Its usage row is locked too: a row that is only joined would be read as it was before the wait for the lock.
    """
    row = await connection.fetchrow(
        f"""
        SELECT {_REVISION} FROM {SOURCE}
        WHERE m.tenant_id = $1 AND m.id = $2 AND {ALIVE} {"FOR UPDATE OF m, u" if lock else ""}
        """,
        tenant,
        memory_id,
    )
    return _revision(row) if row else None


async def find_by_id(
    tenant: TenantId, connection: Connection, ids: Sequence[UUID], *, lock: bool = False
) -> dict[UUID, Revision]:
    """The memories of these ids, hidden and expired ones too; locked in their order."""
    rows = await connection.fetch(
        f"""
        SELECT {_REVISION} FROM {SOURCE}
        WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND u.memory_id = ANY($2::uuid[])
        ORDER BY m.id {"FOR UPDATE OF m, u" if lock else ""}
        """,
        tenant,
        ids,
    )
    return {row["id"]: _revision(row) for row in rows}


async def find_named(
    tenant: TenantId, connection: Connection, names: Sequence[Name], *, lock: bool = False
) -> dict[Name, Revision]:
    """The memories of these names, hidden and expired ones too; locked in the order of their ids."""
    rows = await connection.fetch(
        f"""
        SELECT {_REVISION} FROM unnest($2::text[], $3::text[], $4::text[]) AS n(external_id, user_id, agent_id)
        JOIN ({SOURCE}) ON m.tenant_id = $1 AND m.external_id = n.external_id
            AND m.user_id IS NOT DISTINCT FROM n.user_id AND m.agent_id IS NOT DISTINCT FROM n.agent_id
        ORDER BY m.id {"FOR UPDATE OF m, u" if lock else ""}
        """,
        tenant,
        [name.external_id for name in names],
        [name.user_id for name in names],
        [name.agent_id for name in names],
    )
    return {Name(row["external_id"], row["user_id"], row["agent_id"]): _revision(row) for row in rows}


async def find_twins(
    tenant: TenantId, connection: Connection, keys: Sequence[bytes], *, lock: bool = False
) -> dict[bytes, Revision]:
    """The active memories that are the same, expired ones too, by their key; locked in its order."""
    rows = await connection.fetch(
        f"""
        SELECT {_REVISION} FROM {SOURCE}
        WHERE m.tenant_id = $1 AND m.dedup_key = ANY($2::bytea[]) AND m.state = 'active'
        ORDER BY m.dedup_key {"FOR UPDATE OF m, u" if lock else ""}
        """,
        tenant,
        keys,
    )
    return {row["dedup_key"]: _revision(row) for row in rows}


def _revision(row: Row) -> Revision:
    return Revision(
        memory=memory_of(row),
        rev=row["rev"],
        occurred_given=row["occurred_given"],
        dedup_key=row["dedup_key"],
        unscored=row["unscored"],
        expired=row["expired"],
    )

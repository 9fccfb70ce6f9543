"""What an import asks the database for, beside writing memories."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from memplane_core.contracts.export import HistoryLine
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.session import Connection


async def one_at_a_time(tenant: TenantId, connection: Connection) -> None:
    """Wait until no other import of the tenant is writing: of two with the same ids, the later one finds them there."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('import ' || $1::uuid::text, 0))", tenant)


async def next_revisions(tenant: TenantId, connection: Connection, ids: Sequence[UUID]) -> dict[UUID, int]:
    """The first revision of these memories, which are not there, that the index cannot have been told of.

    A memory that was deleted may still be on its way out of the index, by keys that name its revision. Ask after those
    who might be deleting it have ended.
    """
    rows = await connection.fetch(
        """
        SELECT memory_id, max(rev) + 1 AS rev FROM outbox
        WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) GROUP BY memory_id
        """,
        tenant,
        ids,
    )
    known = {row["memory_id"]: row["rev"] for row in rows}
    return {memory_id: known.get(memory_id, 1) for memory_id in ids}


_MISSING = """
    FROM json_to_recordset($2::json) AS r(
        memory_id uuid, version int, event text, key_id text, request_id text, at timestamptz, changes jsonb)
    {join}
    WHERE NOT EXISTS (
        SELECT FROM history h WHERE h.tenant_id = $1 AND h.memory_id = r.memory_id AND h.version = r.version)
"""


async def add_history(tenant: TenantId, connection: Connection, entries: Sequence[HistoryLine]) -> int:
    """Add those entries of histories that are not there, and return how many that were.

    Left out is what tells of a later version than the memory has: its own next change will be told under that number.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant that has locked or made their memories.
        entries: Of memories that are there.
    """
    if not entries:
        return 0
    missing = _MISSING.format(
        join="JOIN memory m ON m.tenant_id = $1 AND m.id = r.memory_id AND m.version >= r.version"
    )
    done = await connection.execute(
        f"""
        INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, at, changes)
        SELECT $1, r.memory_id, r.version, r.event, r.key_id, r.request_id, r.at, r.changes {missing}
        """,
        tenant,
        _json(entries),
    )
    return int(done.rpartition(" ")[2])


async def count_missing_history(tenant: TenantId, connection: Connection, entries: Sequence[HistoryLine]) -> int:
    """How many of these entries are not there, of memories that may not be there either."""
    if not entries:
        return 0
    missing = _MISSING.format(join="LEFT JOIN memory m ON m.tenant_id = $1 AND m.id = r.memory_id")
    count = await connection.fetchval(
        f"SELECT count(*) {missing} AND (m.id IS NULL OR m.version >= r.version)", tenant, _json(entries)
    )
    return int(count)


def _json(entries: Sequence[HistoryLine]) -> str:
    records = [
        {
            "memory_id": entry.memory_id,
            "version": entry.version,
            "event": entry.event,
            "key_id": entry.key_id,
            "request_id": entry.request_id,
            "at": entry.at,
            "changes": msgspec.Raw(exact_json(entry.changes)),
        }
        for entry in entries
    ]
    return msgspec.json.encode(records).decode()


async def is_claimed(tenant: TenantId, connection: Connection, key: str) -> bool:
    """Whether a request with this Idempotency-Key has been answered, whatever its body was."""
    found = await connection.fetchval("SELECT true FROM idempotency WHERE tenant_id = $1 AND key = $2", tenant, key)
    return bool(found)

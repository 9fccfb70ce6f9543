"""What memories remember of those that were merged into them, where it changes by something else than a merge."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.domain.merge_ledger import Ledger, overwritten, settled
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import merges
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.session import Connection

_AT_ONCE: Final = 50
"""Ledgers in memory at a time; one of 10,000 merges has some megabytes."""

# Passed over is what somebody else holds, and what nobody may write. Whoever has locked others already cannot wait
# here: merges and restores lock both in the order of their ids.
_FREE: Final = """
    SELECT m.id FROM memory m JOIN memory_usage u ON u.tenant_id = m.tenant_id AND u.memory_id = m.id
    WHERE m.tenant_id = $1 AND m.id = ANY($2::uuid[]) AND u.memory_id = ANY($2::uuid[]) AND m.merges IS NOT NULL
      AND NOT EXISTS (
        SELECT FROM erasure e WHERE e.tenant_id = $1 AND e.state = 'running'
          AND (e.user_id IS NULL OR e.user_id = m.user_id) AND (e.agent_id IS NULL OR e.agent_id = m.agent_id))
    ORDER BY m.id FOR UPDATE OF m, u SKIP LOCKED
"""


async def settle(tenant: TenantId, connection: Connection, survivors: Collection[UUID]) -> int:
    """Let memories remember no more of memories that are not merged into them any more; nothing else changes.

    Passed over is one that somebody else is changing just now, and one whose owner is being erased: what it remembers
    in vain goes with its next merge, restore or purge, or with it.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant.
        survivors: Those that others were merged into.

    Returns:
        How many remember less.
    """
    ids = sorted(survivors)
    changed = 0
    for start in range(0, len(ids), _AT_ONCE):
        free = await connection.fetch(_FREE, tenant, ids[start : start + _AT_ONCE])
        locked = await merges.lock(tenant, connection, [row["id"] for row in free])
        merged = await _merged_into(tenant, connection, list(locked))
        new = {
            its.id: settled(its.standing, its.ledger, merged=merged[its.id])
            for its in locked.values()
            if its.ledger is not None and any(taken.id not in merged[its.id] for taken in its.ledger.taken)
        }
        await _store(tenant, connection, new)
        changed += len(new)
    return changed


async def take_over(tenant: TenantId, connection: Connection, given: Mapping[UUID, Ledger | None]) -> None:
    """Let memories remember of merges what a file says of them, but for counts and times of uses.

    Args:
        tenant: Whose they are.
        connection: A transaction of the tenant that has locked them, and made them all else that the file says.
        given: By memory.
    """
    told = [memory_id for memory_id, ledger in given.items() if ledger is not None]
    rows = await connection.fetch(
        """
        SELECT id FROM memory
        WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND (merges IS NOT NULL OR id = ANY($3::uuid[])) ORDER BY id
        """,
        tenant,
        list(given),
        told,
    )
    for start in range(0, len(rows), _AT_ONCE):
        locked = await merges.lock(tenant, connection, [row["id"] for row in rows[start : start + _AT_ONCE]])
        new = {its.id: overwritten(its.standing, its.ledger, given[its.id]) for its in locked.values()}
        await _store(tenant, connection, {its.id: new[its.id] for its in locked.values() if new[its.id] != its.ledger})


class Forgotten(msgspec.Struct, frozen=True):
    """What became of memories that remembered merges of memories that were erased.

    Attributes:
        forgot: How many remember them no more.
        left: How many could not be changed just now.
    """

    forgot: int
    left: int


async def forget_erased(tenant: TenantId, connection: Connection, erasure_id: UUID) -> Forgotten:
    """Let memories, whoever's they are, remember no more that those were merged into them which an erasure deleted."""
    rows = await connection.fetch(
        """
        WITH named AS MATERIALIZED (
            SELECT m.id, (taken ->> 'id')::uuid AS gone
            FROM memory m CROSS JOIN LATERAL jsonb_array_elements(m.merges -> 'taken') AS taken
            WHERE m.tenant_id = $1 AND m.merges IS NOT NULL
        )
        SELECT DISTINCT n.id FROM named n
        JOIN erased_memory e ON e.tenant_id = $1 AND e.erasure_id = $2 AND e.memory_id = n.gone
        """,
        tenant,
        erasure_id,
    )
    forgot = await settle(tenant, connection, [row["id"] for row in rows])
    return Forgotten(forgot, len(rows) - forgot)


async def _merged_into(
    tenant: TenantId, connection: Connection, survivors: Collection[UUID]
) -> defaultdict[UUID, set[UUID]]:
    rows = await connection.fetch(
        """
        SELECT merged_into, id FROM memory
        WHERE tenant_id = $1 AND merged_into = ANY($2::uuid[]) AND state = 'merged'
        """,
        tenant,
        list(survivors),
    )
    found: defaultdict[UUID, set[UUID]] = defaultdict(set)
    for row in rows:
        found[row["merged_into"]].add(row["id"])
    return found


async def _store(tenant: TenantId, connection: Connection, ledgers: Mapping[UUID, Ledger | None]) -> None:
    if not ledgers:
        return
    records = [
        {"id": memory_id, "merges": ledger and msgspec.Raw(exact_json(msgspec.to_builtins(ledger)))}
        for memory_id, ledger in ledgers.items()
    ]
    await connection.execute(
        """
        UPDATE memory m SET merges = i.merges FROM json_to_recordset($2::json) AS i(id uuid, merges jsonb)
        WHERE m.tenant_id = $1 AND m.id = i.id
        """,
        tenant,
        msgspec.json.encode(records).decode(),
    )

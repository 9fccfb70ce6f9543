"""All rows of a tenant, whatever tables there are: found in the catalogue, so that a new one is not forgotten."""

from typing import Final

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection

KEPT: Final = frozenset(("audit", "erasure"))
"""Tables that keep their rows of a tenant that is gone: who did what, and the receipt. `tenant` keeps its id."""

LAST: Final = ("memory_count", "lease", "job")
"""In this order at the end: counted by triggers of others, and what the removal itself goes by."""


async def tenant_tables(tenant: TenantId, connection: Connection) -> list[str]:
    """Tables with a `tenant_id`, in the order in which they can be emptied; those with references to others first."""
    rows = await connection.fetch(
        """
        SELECT c.relname AS name FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        ORDER BY c.relname
        """
    )
    del tenant
    names = [row["name"] for row in rows if row["name"] not in KEPT]
    # The memories first: whoever deletes rows of a memory that is still there leaves it in pieces to be seen.
    return sorted(names, key=lambda name: (LAST.index(name) + 1 if name in LAST else 0, name != "memory", name))


async def delete_rows(tenant: TenantId, connection: Connection, table: str, *, limit: int) -> int:
    """Delete some of a table's rows of the tenant; returns how many. `table` is one of `tenant_tables`."""
    assert table.isidentifier()
    # All rows of a tenant are in one partition, so that where they are tells them apart.
    gone = await connection.fetchval(
        f"""
        WITH gone AS (
            DELETE FROM {table} WHERE tenant_id = $1
                AND ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE tenant_id = $1 LIMIT $2)) RETURNING 1
        ) SELECT count(*) FROM gone
        """,
        tenant,
        limit,
    )
    return int(gone)


async def blank_tenant(tenant: TenantId, connection: Connection) -> None:
    """Leave nothing of a tenant that is gone but its id, and when it came and went."""
    await connection.execute(
        "UPDATE tenant SET name = '', policy = '{}', limits = '{}', active_generation = 0 WHERE id = $1"
        " AND deleted_at IS NOT NULL",
        tenant,
    )

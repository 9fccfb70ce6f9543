"""Whatever column or table a tenant has is exported, made anew by an import, or left out for a reason given here."""

from typing import Any, Final
from uuid import UUID

import httpx2
import pytest
from tests.integration.transfer.conftest import export
from tests.integration.transfer.lines import send
from tests.integration.transfer.test_import import furnish

from memplane_core.contracts.policy import Policy, PolicyPatch
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.limits import StoredCount, stored_count
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio

CARRIED: Final = {
    "memory": {
        "tenant_id": "another's afterwards",
        "rev": "of the index, which is filled anew",
    },
    "memory_usage": {"tenant_id": "another's afterwards"},
    "memory_scene": {"tenant_id": "another's afterwards"},
    "memory_words": {"tenant_id": "another's afterwards", "marks": "mixed with the tenant's id"},
    "history": {"tenant_id": "another's afterwards"},
    "observation": {
        "tenant_id": "another's afterwards",
        "generation": "of the index here",
        "spans": "of the vectors",
        "vectors": "made anew, by the model of the tenant that imports",
    },
}
"""Tables that are the same after a round trip, and the columns of each that are not."""

LEFT_OUT: Final = {
    "api_key": "secrets stay where they are",
    "audit": "of what was done here",
    "chunk": "vectors are made anew, by the model of the tenant that imports",
    "erased_memory": "of an erasure here",
    "erasure": "a receipt of what was done here",
    "generation": "of the index here",
    "idempotency": "of requests that were made here",
    "job": "of what was done here",
    "lease": "of processes here",
    "memory_count": "counted anew",
    "merge_mark": "all is compared anew",
    "merge_plan": "of a run that is under way here",
    "outbox": "of the index here",
    "reflection": "all is reflected upon anew",
    "usage_day": "of what was done here",
}


async def tables(database: Database, tenant: TenantId) -> set[str]:
    """All that have rows of tenants, partitions left out."""
    async with database.tenant(tenant) as connection:
        rows = await connection.fetch(
            """
            SELECT c.relname::text AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
              AND a.attname = 'tenant_id' AND NOT a.attisdropped
            """
        )
    return {row["name"] for row in rows}


async def rows_of(database: Database, tenant: TenantId, table: str) -> list[dict[str, Any]]:
    async with database.tenant(tenant) as connection:
        rows = await connection.fetch(f"SELECT to_jsonb(t) AS row FROM {table} t WHERE tenant_id = $1", tenant)
    kept = [{name: value for name, value in row["row"].items() if name not in CARRIED[table]} for row in rows]
    return sorted(kept, key=str)


async def test_every_table_is_carried_or_left_out_for_a_reason(database: Database, tenant: TenantId) -> None:
    assert await tables(database, tenant) == CARRIED.keys() | LEFT_OUT.keys()
    assert set(PolicyPatch.__struct_fields__) == set(Policy.__struct_fields__)


async def test_every_column_is_the_same_after_a_round_trip(
    client: httpx2.AsyncClient, other: httpx2.AsyncClient, database: Database, tenant: TenantId
) -> None:
    await furnish(client, database, tenant)
    assert (await send(other, (await export(client)).body)).status_code == 200
    theirs = TenantId(UUID((await other.get("/v1/whoami")).json()["tenant_id"]))
    for table in CARRIED:
        before = await rows_of(database, tenant, table)
        assert before
        # A column that has one value in all of these rows would not be missed: each of them has to be tried.
        values = {name: {str(row[name]) for row in before} for name in before[0]}
        assert {name for name, found in values.items() if len(found) == 1} == set(), table
        assert await rows_of(database, theirs, table) == before
    async with database.tenant(theirs) as connection:
        stored = await stored_count(theirs, connection)
    assert stored == StoredCount(total=702 + 3, held=3)

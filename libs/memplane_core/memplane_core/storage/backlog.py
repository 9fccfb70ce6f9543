"""How much waits in the outbox: of one tenant, and, through functions that cross tenants, of all."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.generations import FED
from memplane_core.storage.session import Connection


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The outbox of all tenants.

    Attributes:
        pending: Rows that the index has not been told of, counted up to 100,000.
        failed: Rows that it can never hold, likewise.
        oldest_s: Age of the oldest pending row, in seconds; 0 where there is none.
    """

    pending: int
    failed: int
    oldest_s: float


async def has_due_work(tenant: TenantId, connection: Connection) -> bool:
    """Whether the index could be told of something right now: rows of a generation that is gone do not count."""
    found = await connection.fetchval(
        f"""
        SELECT EXISTS (
            SELECT 1 FROM tenant t JOIN generation g ON g.tenant_id = t.id
            JOIN outbox o ON o.tenant_id = $1 AND o.generation = g.number AND g.{FED}
            WHERE t.id = $1 AND t.deleted_at IS NULL
              AND o.done_at IS NULL AND o.failed_at IS NULL AND o.not_before <= clock_timestamp())
        """,
        tenant,
    )
    return bool(found)


async def pending_of(tenant: TenantId, connection: Connection, memory_ids: Sequence[UUID]) -> int:
    """How many of these memories searches may not find in the index yet.

    One that it can never hold is not waited for, nor is a generation that does not answer searches.
    """
    count = await connection.fetchval(
        """
        SELECT count(DISTINCT memory_id) FROM outbox
        WHERE tenant_id = $1 AND memory_id = ANY($2::uuid[]) AND op = 'upsert'
          AND generation = (SELECT active_generation FROM tenant WHERE id = $1)
          AND done_at IS NULL AND failed_at IS NULL
        """,
        tenant,
        memory_ids,
    )
    return int(count)


async def tenants_with_work(connection: Connection, *, limit: int) -> list[TenantId]:
    """Tenants whose outbox has something due, the one that has waited longest first. `connection` has no tenant."""
    rows = await connection.fetch("SELECT tenants_with_work($1) AS id", limit)
    return [TenantId(row["id"]) for row in rows]


async def trim_finished(connection: Connection, *, outbox_age: timedelta, idempotency_age: timedelta) -> int:
    """Delete what nobody will ask for again; returns how many rows went. `connection` has no tenant."""
    return int(await connection.fetchval("SELECT trim_finished($1, $2)", outbox_age, idempotency_age))


async def backlog(connection: Connection) -> Backlog:
    """The state of every tenant's outbox in three numbers. `connection` has no tenant."""
    row = await connection.fetchrow("SELECT pending, failed, oldest_s FROM outbox_backlog(100000)")
    assert row is not None
    return Backlog(pending=row["pending"], failed=row["failed"], oldest_s=row["oldest_s"])

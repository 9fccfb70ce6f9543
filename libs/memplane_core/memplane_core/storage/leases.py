"""Leases: who may do a job of a tenant now. Counted by the database's clock, so that no worker's clock matters."""

import time

import msgspec

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to do a tenant's job, until it ends or is given back.

    Attributes:
        name: Of the job.
        owner: Who took it.
        epoch: Grows each time it is taken: an owner that lost it is not the owner of the next one.
        held_until: By this process's monotonic clock; a lower bound, as it counts from before the database was asked.
    """

    tenant: TenantId
    name: str
    owner: str
    epoch: int
    held_until: float

    def remaining_s(self) -> float:
        """Seconds for which it is surely still held; negative when it may be another's by now."""
        return self.held_until - time.monotonic()


async def take_lease(tenant: TenantId, database: Database, *, name: str, owner: str, ttl_s: float) -> Lease | None:
    """Take the lease if nobody holds it. None where somebody does, or where it was given back with a pause.

    Raises:
        Unavailable: Postgres cannot be reached.
    """
    asked = time.monotonic()
    async with database.tenant(tenant) as connection:
        epoch = await connection.fetchval(
            """
            INSERT INTO lease AS l (tenant_id, name, owner, epoch, expires_at)
            VALUES ($1, $2, $3, 1, clock_timestamp() + make_interval(secs => $4))
            ON CONFLICT (tenant_id, name) DO UPDATE
            SET owner = EXCLUDED.owner, epoch = l.epoch + 1, expires_at = clock_timestamp() + make_interval(secs => $4)
            WHERE l.expires_at <= clock_timestamp()
            RETURNING epoch
            """,
            tenant,
            name,
            owner,
            ttl_s,
        )
    if epoch is None:
        return None
    return Lease(tenant=tenant, name=name, owner=owner, epoch=epoch, held_until=asked + ttl_s)


async def renew_lease(tenant: TenantId, database: Database, lease: Lease, *, ttl_s: float) -> Lease | None:
    """Hold it for `ttl_s` from now on. None where another has taken it meanwhile.

    Raises:
        Unavailable: Postgres cannot be reached.
    """
    asked = time.monotonic()
    async with database.tenant(tenant) as connection:
        renewed = await connection.fetchval(
            """
            UPDATE lease SET expires_at = clock_timestamp() + make_interval(secs => $5)
            WHERE tenant_id = $1 AND name = $2 AND owner = $3 AND epoch = $4
            RETURNING true
            """,
            tenant,
            lease.name,
            lease.owner,
            lease.epoch,
            ttl_s,
        )
    return msgspec.structs.replace(lease, held_until=asked + ttl_s) if renewed else None


async def release_lease(tenant: TenantId, database: Database, lease: Lease, *, pause_s: float = 0) -> None:
    """Give it back; nobody can take it for `pause_s`. No error where it is another's by now.

    Raises:
        Unavailable: Postgres cannot be reached; the lease then ends by itself.
    """
    async with database.tenant(tenant) as connection:
        await connection.execute(
            """
            UPDATE lease SET expires_at = clock_timestamp() + make_interval(secs => $5)
            WHERE tenant_id = $1 AND name = $2 AND owner = $3 AND epoch = $4
            """,
            tenant,
            lease.name,
            lease.owner,
            lease.epoch,
            pause_s,
        )

"""Drops generations whose time is over: their collection, their chunks, and their part of the outbox."""

import contextlib
import time
import uuid
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.errors import Unavailable
from memplane_core.domain.index import Generation
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import generations, refill
from memplane_core.storage.leases import Lease, release_lease, renew_lease, take_lease
from memplane_core.storage.session import Database, is_contention
from memplane_maintenance.drain.terms import DRAIN_LEASE

log = get_logger(__name__)

_LEASE: Final = "retire"
_PAGE: Final = 1_000
_LOCK_S: Final = 1.0


class RetirementReport(msgspec.Struct, kw_only=True):
    """What a slice did.

    Attributes:
        dropped: Generations of which nothing is left.
        more: Something is left to be dropped.
    """

    dropped: int = 0
    more: bool = False


class _SliceOver(Exception):
    """The rest is for the next slice, or for whoever has the tenant by now."""


class Retirement:
    """Drops what no search and no write knows any more. It may be stopped at any line and begun again.

    Args:
        database: Where generations are.
        index: That holds their collections.
        lease_s: For how long a tenant is taken at a time; longer than dropping a collection takes.
        slice_s: After this long no new page is begun.
    """

    def __init__(
        self, database: Database, index: VectorIndex, *, lease_s: float = 120.0, slice_s: float = 10.0
    ) -> None:
        self._database = database
        self._index = index
        self._lease_s = lease_s
        self._slice_s = slice_s

    async def run(self, tenant: TenantId) -> RetirementReport:
        """Work on a tenant for a slice.

        Raises:
            Unavailable: Postgres or the index is away.
        """
        lease = await self._take(tenant, _LEASE)
        if lease is None:
            return RetirementReport()
        report = RetirementReport()
        ends_at = time.monotonic() + self._slice_s
        try:
            for generation in await self._to_drop(tenant):
                report.more = not await self._drop(tenant, generation, lease, ends_at=ends_at)
                if report.more:
                    break
                report.dropped += 1
        finally:
            await self._give_back(tenant, lease)
        return report

    async def _to_drop(self, tenant: TenantId) -> list[Generation]:
        """From the commit on no write is queued for them; those that were have committed."""
        try:
            async with self._database.tenant(tenant) as connection:
                await generations.hold_writes(tenant, connection, wait_s=_LOCK_S)
                return await generations.retire_overdue(tenant, connection)
        except Exception as error:
            if is_contention(error):
                return []  # the sweep comes back to it
            raise

    async def _drop(self, tenant: TenantId, generation: Generation, lease: Lease, *, ends_at: float) -> bool:
        """Drop all of a generation; False where the slice ended before."""
        # Under the drain's lease: one that has read which generations there are would make the collection anew.
        draining = await self._take(tenant, DRAIN_LEASE)
        if draining is None:
            return False
        try:
            await self._index.drop(tenant, generation)
        finally:
            await self._give_back(tenant, draining)
        try:
            await self._delete_rows(tenant, generation, "chunk", lease=lease, ends_at=ends_at)
            # An edit that saw its chunks may still be about to queue their removal; no later one does.
            async with self._database.tenant(tenant) as connection:
                await generations.hold_writes(tenant, connection, wait_s=_LOCK_S)
            await self._delete_rows(tenant, generation, "outbox", lease=lease, ends_at=ends_at)
        except _SliceOver:
            return False
        except Exception as error:
            if is_contention(error):
                return False
            raise
        async with self._database.tenant(tenant) as connection:
            await generations.mark_dropped(tenant, connection, generation.number)
        log.info("generation_dropped", tenant=str(tenant), collection=generation.collection)
        return True

    async def _delete_rows(
        self,
        tenant: TenantId,
        generation: Generation,
        table: Literal["chunk", "outbox"],
        *,
        lease: Lease,
        ends_at: float,
    ) -> None:
        """Delete all that a table has of a generation. Raises _SliceOver."""
        after: UUID | None = None
        while True:
            held = await renew_lease(tenant, self._database, lease, ttl_s=self._lease_s)
            if held is None or time.monotonic() >= ends_at:
                raise _SliceOver
            async with self._database.tenant(tenant) as connection:
                page = await refill.delete_page(
                    tenant, connection, table=table, generation=generation.number, after=after, limit=_PAGE
                )
            if page.seen < _PAGE:
                return
            after = page.last

    async def _take(self, tenant: TenantId, name: str) -> Lease | None:
        return await take_lease(tenant, self._database, name=name, owner=uuid.uuid4().hex, ttl_s=self._lease_s)

    async def _give_back(self, tenant: TenantId, lease: Lease) -> None:
        with contextlib.suppress(Unavailable):
            await release_lease(tenant, self._database, lease)

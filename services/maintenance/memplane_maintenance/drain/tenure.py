"""Holding a tenant's lease through a slice."""

import time
from collections.abc import Callable

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.leases import Lease, renew_lease
from memplane_core.storage.session import Database
from memplane_maintenance.drain.terms import DrainLimits, Obstructed


class Tenure:
    """The lease of one tenant, renewed as the slice goes on, and the slice's end."""

    def __init__(
        self, tenant: TenantId, database: Database, lease: Lease, *, limits: DrainLimits, stopping: Callable[[], bool]
    ) -> None:
        self._tenant = tenant
        self._database = database
        self.lease = lease
        self._limits = limits
        self._stopping = stopping
        self._ends_at = time.monotonic() + limits.slice_s

    @property
    def over(self) -> bool:
        """No new batch is to be begun."""
        return self._stopping() or time.monotonic() >= self._ends_at

    async def hold(self) -> None:
        """Make sure that the lease outlasts a call to the index, well before that call is made.

        Raises:
            Obstructed: Another has taken it.
        """
        limits = self._limits
        if self.lease.remaining_s() > (limits.lease_s + limits.rpc_timeout_s) / 2:
            return
        renewed = await renew_lease(self._tenant, self._database, self.lease, ttl_s=limits.lease_s)
        if renewed is None:
            raise Obstructed("lease", pause_s=0)
        self.lease = renewed

    def check(self) -> None:
        """Call right before a call to the index, with no await between.

        Raises:
            Obstructed: By the time that call may take effect, another could hold the lease.
        """
        if self.lease.remaining_s() <= self._limits.rpc_timeout_s:
            raise Obstructed("lease", pause_s=0)

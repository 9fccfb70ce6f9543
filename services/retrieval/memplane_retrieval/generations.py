"""Which generation answers a tenant's searches, and its policy, remembered together for a few seconds."""

import msgspec
from cachetools import TTLCache

from memplane_core.contracts.policy import Policy
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.generations import active_generation
from memplane_core.storage.policies import policy_of
from memplane_core.storage.session import Database


class _Standing(msgspec.Struct, frozen=True):
    generation: Generation
    policy: Policy


class Generations:
    """A cache that may be stale: search compares what it used with what Postgres says in the same breath."""

    def __init__(self, database: Database, *, ttl_s: float) -> None:
        self._database = database
        self._known: TTLCache[TenantId, _Standing] = TTLCache(maxsize=10_000, ttl=ttl_s)

    async def active(self, tenant: TenantId) -> Generation:
        """The tenant's active generation. Raises NotFound where the tenant is gone."""
        return (await self._standing(tenant)).generation

    async def policy(self, tenant: TenantId) -> Policy:
        """The tenant's policy. Raises NotFound where the tenant is gone."""
        return (await self._standing(tenant)).policy

    async def _standing(self, tenant: TenantId) -> _Standing:
        known = self._known.get(tenant)
        if known is None:
            async with self._database.tenant(tenant) as connection:
                known = _Standing(await active_generation(tenant, connection), await policy_of(tenant, connection))
            self._known[tenant] = known
        return known

    def forget(self, tenant: TenantId) -> None:
        """Ask Postgres the next time."""
        self._known.pop(tenant, None)

"""Which generation answers a tenant's searches, remembered for a few seconds."""

from cachetools import TTLCache

from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.generations import active_generation
from memplane_core.storage.session import Database


class Generations:
    """A cache that may be stale: search compares what it used with what Postgres says in the same breath."""

    def __init__(self, database: Database, *, ttl_s: float) -> None:
        self._database = database
        self._known: TTLCache[TenantId, Generation] = TTLCache(maxsize=10_000, ttl=ttl_s)

    async def active(self, tenant: TenantId) -> Generation:
        """The tenant's active generation. Raises NotFound where the tenant is gone."""
        known = self._known.get(tenant)
        if known is None:
            async with self._database.tenant(tenant) as connection:
                known = await active_generation(tenant, connection)
            self._known[tenant] = known
        return known

    def forget(self, tenant: TenantId) -> None:
        """Ask Postgres the next time."""
        self._known.pop(tenant, None)

"""The day's quota of tokens: looked up before a text is embedded, charged before the vector is used.

The count is Postgres's: what was embedded and handed out is charged for good, whatever is killed. A text that is
embedded while the quota fills up may overrun it by what was under way at that moment.
"""

from typing import Final

from cachetools import TTLCache

from memplane_core.contracts.limits import EffectiveLimits
from memplane_core.domain.ports import Allowance
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.limits import effective, tenant_limits
from memplane_core.storage.session import Database
from memplane_core.storage.usage_days import UsageMeter, add_tokens, tokens_today

_TRUST_S: Final = 5.0
"""How long a tenant is taken to have no quota after it had none."""


class TokenQuota:
    """Implements `domain.ports.TokenMeter` over Postgres.

    Args:
        database: Of the counts.
        usage: Takes the counts of tenants without a quota.
        defaults: The installation's limits.
    """

    def __init__(self, database: Database, usage: UsageMeter, *, defaults: EffectiveLimits) -> None:
        self._database = database
        self._usage = usage
        self._defaults = defaults
        self._free: TTLCache[TenantId, None] = TTLCache(10_000, _TRUST_S)

    async def allowance(self, tenant: TenantId) -> Allowance | None:
        """What the tenant may still embed today; None where it has no such quota.

        Raises:
            QuotaExceeded: Nothing is left.
            Unavailable: Postgres is away.
        """
        if tenant in self._free:
            return None
        async with self._database.tenant(tenant) as connection:
            limit = effective(await tenant_limits(tenant, connection), self._defaults).tokens_a_day
            if limit is None:
                self._free[tenant] = None
                return None
            allowance = Allowance(limit=limit, used=await tokens_today(tenant, connection))
        if allowance.left <= 0:
            raise allowance.exceeded()
        return allowance

    async def spent(self, tenant: TenantId, tokens: int) -> None:
        """Charge tokens: for good where the tenant has a quota, soon where it has none. Raises Unavailable."""
        if tenant in self._free:
            self._usage.add(tenant, tokens=tokens)
            return
        async with self._database.tenant(tenant) as connection:
            await add_tokens(tenant, connection, tokens)

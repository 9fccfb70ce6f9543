"""Begins the jobs that a tenant's policy asks for, each when its time has come and there is something for it to do.

The job table is the schedule: what was begun, by whomever, is not begun again before `every_hours` have passed.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Protocol

import msgspec
from redis.asyncio import Redis

from memplane_core.contracts.job_runs import MergeParams
from memplane_core.contracts.maintenance_runs import MaintenanceKind, params_of
from memplane_core.contracts.policy import MaintenancePolicy, MergeRules
from memplane_core.contracts.reflect_runs import reflect_params
from memplane_core.domain.errors import Conflict, Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage.jobs import create_job, forget_old_runs
from memplane_core.storage.pruning import Over, is_any_over
from memplane_core.storage.reconcile import has_memories
from memplane_core.storage.schedules import Standing, standing_of
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.tenants import list_tenants
from memplane_maintenance.errors import origin
from memplane_maintenance.jobs.reconcile_watch import STARTED_BY
from memplane_maintenance.jobs.tenant_cursor import TenantCursor

log = get_logger(__name__)

_PAGE: Final = 200
_RUN_S: Final = 30.0
_AT_ONCE: Final = 100
_RUNS_KEPT: Final = 10
_CURSOR_KEY: Final = "mp:schedule:after"
_HOUR_S: Final = 3600.0


class Plan(Protocol):
    """What a policy says of one kind of job."""

    @property
    def enabled(self) -> bool:
        """Whether it is begun at all without being asked for."""
        ...

    @property
    def every_hours(self) -> int:
        """Least time from one beginning to the next."""
        ...


HasWork = Callable[[TenantId, Connection, Standing], Awaitable[bool]]


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of job that begins by itself.

    Attributes:
        plan: What the policy says of it.
        params: What a run works by then.
        has_work: Whether a run would find anything to look at.
    """

    kind: str
    plan: Callable[[MaintenancePolicy], Plan]
    params: Callable[[MaintenancePolicy], dict[str, Any]]
    has_work: HasWork


async def _any_memory(tenant: TenantId, connection: Connection, standing: Standing) -> bool:
    del standing
    return await has_memories(tenant, connection)


def _any_over(why: Over) -> HasWork:
    async def found(tenant: TenantId, connection: Connection, standing: Standing) -> bool:
        days = standing.policy.maintenance.expired_grace_days if why == "expire" else 0
        return await is_any_over(tenant, connection, why=why, until=standing.now - timedelta(days=days))

    return found


def _kept(kind: MaintenanceKind, has_work: HasWork) -> Scheduled:
    def plan(policy: MaintenancePolicy) -> Plan:
        return getattr(policy, kind)

    return Scheduled(kind=kind, plan=plan, params=lambda policy: params_of(kind, policy), has_work=has_work)


def _merge_params(policy: MaintenancePolicy) -> dict[str, Any]:
    rules = {name: getattr(policy.merge, name) for name in MergeRules.__struct_fields__}
    return msgspec.to_builtins(MergeParams(**rules))


SCHEDULED: Final = (
    _kept("expire", _any_over("expire")),
    _kept("purge", _any_over("purge")),
    _kept("priorities", _any_memory),
    Scheduled(kind="merge", plan=lambda policy: policy.merge, params=_merge_params, has_work=_any_memory),
    _kept("prune", _any_memory),
    Scheduled(kind="reflect", plan=lambda policy: policy.reflect, params=reflect_params, has_work=_any_memory),
)
"""In the order in which they are begun where several are due."""


class Begun(msgspec.Struct, frozen=True):
    """A run that was begun."""

    tenant: TenantId
    kind: str


class Scheduler:
    """Looks at tenants in the order of their ids, and goes on where the last run stopped.

    Of one tenant it has one job under way at a time, so that those with much to do leave the workers to others; one
    that something holds up does not count, for nothing is to be deleted late because the index is away.

    Args:
        database: Of the tenants.
        client: Of the broker: remembers where the last run stopped.
        has_llm: Whether the installation has a language model: without one nothing is begun that takes it.
        at_once: Most jobs that one run begins.
    """

    def __init__(self, database: Database, client: Redis, *, has_llm: bool = False, at_once: int = _AT_ONCE) -> None:
        self._database = database
        self._cursor = TenantCursor(client, _CURSOR_KEY)
        self._at_once = at_once
        self._scheduled = [its for its in SCHEDULED if has_llm or its.kind != "reflect"]
        self._kinds = [its.kind for its in self._scheduled]

    async def run(self) -> list[Begun]:
        """Look at all tenants once, or at as many as half a minute or `at_once` jobs allow.

        Raises:
            Unavailable: Postgres is away.
            redis.RedisError: The broker is.
        """
        ends_at = time.monotonic() + _RUN_S
        begun: list[Begun] = []
        after = await self._cursor.place()
        while True:
            async with self._database.system() as connection:
                page = [tenant.id for tenant in await list_tenants(connection, after=after, limit=_PAGE)]
            for tenant in page:
                begun += await self._seen_to(tenant)
                after = tenant
                if len(begun) >= self._at_once or time.monotonic() >= ends_at:
                    await self._cursor.remember(after)
                    return begun
            if len(page) < _PAGE:
                await self._cursor.remember(None)
                return begun

    async def _seen_to(self, tenant: TenantId) -> list[Begun]:
        """What was begun; nothing where that fails: it is tried again, and is no trouble of the tenants behind it."""
        try:
            return await self._look_at(tenant)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, those behind it must not wait
            # Without the message, which may quote a policy.
            log.warning("schedule_failed", tenant=str(tenant), error=type(error).__name__, where=origin(error))
            return []

    async def _look_at(self, tenant: TenantId) -> list[Begun]:
        async with self._database.tenant(tenant) as connection:
            standing = await standing_of(tenant, connection, kinds=self._kinds)
            if standing is None or standing.under_way - standing.held_up:
                return []
            for its in self._scheduled:
                plan = its.plan(standing.policy.maintenance)
                due = plan.enabled and standing.idle_s[its.kind] >= plan.every_hours * _HOUR_S
                if due and its.kind not in standing.under_way and await its.has_work(tenant, connection, standing):
                    return await self._begin(tenant, connection, its, standing=standing)
        return []

    async def _begin(
        self, tenant: TenantId, connection: Connection, its: Scheduled, *, standing: Standing
    ) -> list[Begun]:
        params = its.params(standing.policy.maintenance)
        with contextlib.suppress(Conflict):  # another scheduler was faster
            await create_job(tenant, connection, kind=its.kind, params=params, dry_run=False, started_by=STARTED_BY)
            await forget_old_runs(tenant, connection, kind=its.kind, started_by=STARTED_BY, keep=_RUNS_KEPT)
            return [Begun(tenant, its.kind)]
        return []

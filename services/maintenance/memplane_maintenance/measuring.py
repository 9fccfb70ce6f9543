"""The whole installation in metrics, asked of Postgres every few seconds by each worker: they all tell the same.

What was measured is shown for as long as Postgres is asked in vain, but for two minutes at most: an old number must not
look like a good one.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from memplane_core.background import beside
from memplane_core.contracts.limits import EffectiveLimits
from memplane_core.contracts.system import GenerationsView, JobsView, TenantLag
from memplane_core.domain.errors import Unavailable
from memplane_core.observability.logs import get_logger
from memplane_core.storage import installation
from memplane_core.storage.backlog import Backlog, backlog
from memplane_core.storage.installation import TenantNumbers
from memplane_core.storage.session import Database
from memplane_maintenance.errors import origin

log = get_logger(__name__)

EVERY_S: Final = 15.0
TENANTS: Final = 10
"""Most tenants that are named for one thing: each is a label of several series."""

_TENANTS_EVERY_S: Final = 60.0
_GOOD_S: Final = 120.0
_SOON: Final = timedelta(days=7)
_MOST_KEYS: Final = 1_000


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at a moment of `time.monotonic`."""

    at: float
    outbox: Backlog
    behind: Sequence[TenantLag]
    generations: GenerationsView
    jobs: Sequence[JobsView]
    tenants: Sequence[TenantNumbers]
    keys_expiring: int


class Measures(Collector):
    """Measures, and gives what was measured to whoever scrapes.

    Args:
        database: Of the installation.
        defaults: Limits of tenants that have none of their own.
    """

    def __init__(self, database: Database, *, defaults: EffectiveLimits) -> None:
        self._database = database
        self._defaults = defaults
        self._numbers: Numbers | None = None
        self._tenants: Sequence[TenantNumbers] = ()
        self._tenants_at = -_TENANTS_EVERY_S

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Measure, and be scraped, for as long as the context lasts."""
        async with beside(self._always(), name="measure"):
            REGISTRY.register(self)
            try:
                yield
            finally:
                REGISTRY.unregister(self)

    async def measure(self) -> Numbers:
        """Ask Postgres once. Raises Unavailable."""
        async with self._database.system() as connection:
            if time.monotonic() - self._tenants_at >= _TENANTS_EVERY_S:
                self._tenants = await installation.tenants_to_watch(connection, page=TENANTS, defaults=self._defaults)
                self._tenants_at = time.monotonic()
            numbers = Numbers(
                at=time.monotonic(),
                outbox=await backlog(connection),
                behind=await installation.index_lag(connection, page=TENANTS),
                generations=await installation.generation_states(connection),
                jobs=await installation.job_states(connection),
                tenants=self._tenants,
                keys_expiring=len(await installation.keys_expiring(connection, within=_SOON, page=_MOST_KEYS)),
            )
        self._numbers = numbers
        return numbers

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges, all of one moment; called by whatever thread serves the metrics."""
        numbers = self._numbers
        if numbers is None or time.monotonic() - numbers.at > _GOOD_S:
            return []
        lag = max((its.oldest_s for its in numbers.behind), default=0.0)
        return [
            _one("outbox_pending_rows", "Outbox rows that the index was not told of.", numbers.outbox.pending),
            _one("outbox_failed_rows", "Outbox rows that can never be indexed.", numbers.outbox.failed),
            _one("outbox_oldest_seconds", "Age of the oldest pending outbox row.", numbers.outbox.oldest_s),
            _one("index_lag_seconds", "Age of the oldest write that an answering generation still lacks.", lag),
            _one("keys_expiring", "API keys that end within a week and that nothing replaces.", numbers.keys_expiring),
            _generations(numbers.generations),
            *_jobs(numbers.jobs),
            *_tenants(numbers),
        ]

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: so that nothing is asked for when this is registered."""
        return []

    async def _always(self) -> None:
        while True:
            try:
                await self.measure()
            except Unavailable:
                pass  # the health of the worker says so
            except Exception as error:  # noqa: BLE001 - the next time is soon
                log.error("not_measured", error=type(error).__name__, where=origin(error))  # noqa: TRY400 - quotes
            await asyncio.sleep(EVERY_S)


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"memplane_maintenance_{name}", text, value=value)


def _generations(view: GenerationsView) -> GaugeMetricFamily:
    found = GaugeMetricFamily(
        "memplane_maintenance_generations", "Generations of all tenants, by what they are for.", labels=["state"]
    )
    for state in GenerationsView.__struct_fields__:
        found.add_metric([state], getattr(view, state))
    return found


def _jobs(jobs: Sequence[JobsView]) -> list[GaugeMetricFamily]:
    runs = GaugeMetricFamily("memplane_maintenance_jobs", "Jobs that have not ended.", labels=["kind", "state"])
    held = GaugeMetricFamily(
        "memplane_maintenance_jobs_stuck", "Those whose last step has to be tried again.", labels=["kind"]
    )
    waits = GaugeMetricFamily(
        "memplane_maintenance_job_wait_seconds",
        "For how long one that could go on has not been worked on.",
        labels=["kind"],
    )
    by_kind: dict[str, tuple[int, float]] = {}
    for its in jobs:
        runs.add_metric([its.kind, its.state], its.runs)
        stuck, wait = by_kind.get(its.kind, (0, 0.0))
        by_kind[its.kind] = (stuck + its.held_up, max(wait, its.waits_s))
    for kind, (stuck, wait) in by_kind.items():
        held.add_metric([kind], stuck)
        waits.add_metric([kind], wait)
    return [runs, held, waits]


def _tenants(numbers: Numbers) -> list[GaugeMetricFamily]:
    """Of the largest tenants, those near a quota and those furthest behind, and of no others."""
    stored = GaugeMetricFamily(
        "memplane_tenant_memories", "Active memories, and observations that sessions hold.", labels=["tenant"]
    )
    tokens = GaugeMetricFamily(
        "memplane_tenant_tokens_today", "Tokens of new texts and queries since midnight UTC.", labels=["tenant"]
    )
    used = GaugeMetricFamily("memplane_tenant_quota_used_ratio", "Share of a quota.", labels=["tenant", "quota"])
    lag = GaugeMetricFamily(
        "memplane_tenant_index_lag_seconds", "Age of its oldest write that the index lacks.", labels=["tenant"]
    )
    for its in numbers.tenants:
        name = str(its.tenant)
        stored.add_metric([name], its.stored)
        tokens.add_metric([name], its.tokens)
        for quota, have, limit in (
            ("stored_memories", its.stored, its.stored_limit),
            ("tokens_a_day", its.tokens, its.tokens_limit),
        ):
            if limit is not None:
                used.add_metric([name, quota], have / limit if limit else 1.0)
    for behind in numbers.behind:
        lag.add_metric([str(behind.tenant_id)], behind.oldest_s)
    return [stored, tokens, used, lag]

"""Looks at all collections there are: begins reconciles where one is lost or it is time, and drops what nobody uses."""

import contextlib
import time
import uuid
from collections import defaultdict
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from memplane_core.domain.collections import CollectionName
from memplane_core.domain.errors import Conflict, Unavailable
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import reconcile
from memplane_core.storage.generations import generation_lives
from memplane_core.storage.jobs import create_job, forget_old_runs
from memplane_core.storage.leases import release_lease, take_lease
from memplane_core.storage.reconcile import KnownTenant
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.tenants import list_tenants
from memplane_maintenance import metrics
from memplane_maintenance.drain.terms import DRAIN_LEASE
from memplane_maintenance.jobs.tenant_cursor import TenantCursor

log = get_logger(__name__)

STARTED_BY: Final = "memplane"
"""Who asked for a run that nobody asked for."""

_PAGE: Final = 200
_RUN_S: Final = 30.0
_DROP_S: Final = 120.0
_SCHEDULED_AT_ONCE: Final = 20
_RUNS_KEPT: Final = 10

_CURSOR_KEY: Final = "mp:watch:after"
_ORPHANS_KEY: Final = "mp:watch:orphans"
_FORGOTTEN_AFTER_S: Final = 24 * 3600


class WatchReport(msgspec.Struct, kw_only=True):
    """What was found among the tenants that were looked at.

    Attributes:
        lost: Tenants of which a collection that was made is not there any more.
        scheduled: Tenants whose time for a reconcile had come.
        orphans: Collections that this installation made and has no more use for.
        dropped: Those of them that are gone now.
        foreign: Collections of tenants, or of generations, that this database has never known. They may be another
            installation's, so they are left alone.
    """

    lost: list[TenantId] = msgspec.field(default_factory=list[TenantId])
    scheduled: list[TenantId] = msgspec.field(default_factory=list[TenantId])
    orphans: list[CollectionName] = msgspec.field(default_factory=list[CollectionName])
    dropped: list[CollectionName] = msgspec.field(default_factory=list[CollectionName])
    foreign: list[CollectionName] = msgspec.field(default_factory=list[CollectionName])


class IndexWatch:
    """Looks at tenants in the order of their ids, and goes on where the last run stopped.

    Args:
        database: Of the tenants.
        index: With the collections.
        client: Of the broker: remembers where the last run stopped and which orphans were seen when.
        every_s: Seconds between two reconciles of a tenant that nobody asked for; 0 for none but of lost collections.
        apart_s: Seconds for which a collection must have been an orphan before it is dropped.
    """

    def __init__(
        self, database: Database, index: VectorIndex, client: Redis, *, every_s: float, apart_s: float = 300.0
    ) -> None:
        self._database = database
        self._index = index
        self._client = client
        self._cursor = TenantCursor(client, _CURSOR_KEY)
        self._every_s = every_s
        self._apart_s = apart_s

    async def run(self) -> WatchReport:
        """Look at all tenants, or at as many as half a minute allows.

        Raises:
            Unavailable: Postgres or the index is away.
            redis.RedisError: The broker is.
        """
        ends_at = time.monotonic() + _RUN_S
        report = WatchReport()
        there: dict[TenantId, set[int]] = defaultdict(set)
        for name in await self._index.collections():
            there[name.tenant].add(name.number)
        after = began = await self._cursor.place()
        while True:
            async with self._database.system() as connection:
                page = [tenant.id for tenant in await list_tenants(connection, after=after, limit=_PAGE)]
            last = page[-1] if len(page) == _PAGE else None
            # Tenants that are gone or unknown are in no list: their collections tell of them.
            others = {its for its in there if (after is None or its > after) and (last is None or its <= last)}
            for tenant in sorted({*page, *others}):
                await self._look_at(tenant, there.get(tenant, set()), report)
            after = last
            if after is None or time.monotonic() >= ends_at:
                break
        await self._cursor.remember(after)
        if began is None and after is None:
            for state, found in (("lost", report.lost), ("orphan", report.orphans), ("foreign", report.foreign)):
                metrics.INDEX_COLLECTIONS.labels(state).set(len(found))
            metrics.INDEX_WATCHED.set_to_current_time()
        if report.foreign:
            log.warning("foreign_collections", count=len(report.foreign), first=report.foreign[0].collection)
        return report

    async def _look_at(self, tenant: TenantId, there: set[int], report: WatchReport) -> None:
        async with self._database.tenant(tenant) as connection:
            known = await reconcile.known_tenant(tenant, connection)
            if known is not None and not known.deleted:
                await self._begin_if_due(tenant, connection, there, report, known=known)
        orphans = {number for number in there if known is not None and known.has_lost(number)}
        known_numbers = set(known.numbers) if known else set[int]()
        report.foreign += [CollectionName(tenant, number) for number in sorted(there - known_numbers - orphans)]
        for number in sorted(orphans):
            name = CollectionName(tenant, number)
            report.orphans.append(name)
            if await self._was_seen_before(name) and await self._drop(name):
                report.dropped.append(name)

    async def _begin_if_due(
        self, tenant: TenantId, connection: Connection, there: set[int], report: WatchReport, *, known: KnownTenant
    ) -> None:
        """Queue a reconcile where one is needed, and none is under way."""
        kept = [life.generation for life in await generation_lives(tenant, connection) if life.life == "kept"]
        lost = any(generation.state == "ready" and generation.number not in there for generation in kept)
        due = 0 < self._every_s <= known.idle_s and len(report.scheduled) < _SCHEDULED_AT_ONCE
        if not (lost or due) or not await reconcile.has_memories(tenant, connection):
            return
        with contextlib.suppress(Conflict):
            await forget_old_runs(tenant, connection, kind="reconcile", started_by=STARTED_BY, keep=_RUNS_KEPT)
            await create_job(tenant, connection, kind="reconcile", params={}, dry_run=False, started_by=STARTED_BY)
            if lost:
                log.warning("collection_lost", tenant=str(tenant))
        (report.lost if lost else report.scheduled).append(tenant)

    async def _was_seen_before(self, name: CollectionName) -> bool:
        """Whether it was an orphan some minutes ago too."""
        now = time.time()
        is_new = await self._client.hsetnx(_ORPHANS_KEY, name.collection, str(now))
        await self._client.expire(_ORPHANS_KEY, _FORGOTTEN_AFTER_S)
        first = cast("bytes | None", await self._client.hget(_ORPHANS_KEY, name.collection))
        return not is_new and first is not None and now - float(first) >= self._apart_s

    async def _drop(self, name: CollectionName) -> bool:
        """Drop it if it still is an orphan, while no drain that began before it was one could make it anew."""
        tenant = name.tenant
        lease = await take_lease(tenant, self._database, name=DRAIN_LEASE, owner=uuid.uuid4().hex, ttl_s=_DROP_S)
        if lease is None:
            return False
        try:
            async with self._database.tenant(tenant) as connection:
                known = await reconcile.known_tenant(tenant, connection)
            if known is None or not known.has_lost(name.number):
                return False
            await self._index.drop(tenant, name)
        finally:
            with contextlib.suppress(Unavailable):
                await release_lease(tenant, self._database, lease)
        await self._client.hdel(_ORPHANS_KEY, name.collection)
        log.info("orphan_dropped", collection=name.collection)
        return True

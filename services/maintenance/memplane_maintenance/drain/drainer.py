"""One slice of a tenant's drain, from taking the lease to giving it back."""

import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable

from memplane_core.domain.errors import Unavailable
from memplane_core.domain.ports import Embedder, VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import backlog
from memplane_core.storage.generations import GenerationLife, fed_generations
from memplane_core.storage.leases import Lease, release_lease, take_lease
from memplane_core.storage.session import Database, is_contention
from memplane_maintenance import metrics
from memplane_maintenance.drain.embedding import TextEmbedding
from memplane_maintenance.drain.feeding import CollectionFeed
from memplane_maintenance.drain.tenure import Tenure
from memplane_maintenance.drain.terms import DRAIN_LEASE, DrainLimits, DrainReport, Obstructed
from memplane_maintenance.errors import origin

log = get_logger(__name__)


async def _nothing_to_clear(tenant: TenantId) -> None:
    """Where nobody kicks."""
    del tenant


class Drainer:
    """Tells the index what tenants' outboxes hold.

    It may be stopped at any line, run twice at once, or sleep for any time in between: no acknowledged write is lost,
    and a row that arrives in the index too late is removed again.

    Args:
        database: Where the outbox is.
        index: What has to be told.
        embedder: For texts without vectors.
        limits: How long and how much.
        stopping: Whether the process is to end: the batch under way is finished, and no other begun.
        clear_kick: Forgets that a drain of the tenant was asked for, so that the next kick asks again. Called where the
            outbox is surely looked at afterwards, and not by a drain that finds the tenant taken: while one is at work,
            kicks make no further messages.
    """

    def __init__(
        self,
        database: Database,
        index: VectorIndex,
        embedder: Embedder,
        *,
        limits: DrainLimits,
        stopping: Callable[[], bool] = lambda: False,
        clear_kick: Callable[[TenantId], Awaitable[None]] = _nothing_to_clear,
    ) -> None:
        if limits.lease_s <= limits.rpc_timeout_s:
            raise ValueError(
                f"a lease of {limits.lease_s:g} s cannot cover a call to the index, which may take effect"
                f" {limits.rpc_timeout_s:g} s after it was made"
            )
        self._database = database
        self._index = index
        self._embedder = embedder
        self._limits = limits
        self._stopping = stopping
        self._clear_kick = clear_kick

    async def drain(self, tenant: TenantId) -> DrainReport:
        """Work on a tenant's outbox for a slice. Reports `more` where something is still due.

        Raises:
            Unavailable: Postgres is away.
        """
        began = time.monotonic()
        lease = await take_lease(
            tenant, self._database, name=DRAIN_LEASE, owner=uuid.uuid4().hex, ttl_s=self._limits.lease_s
        )
        if lease is None:
            return DrainReport(taken=False)
        report = DrainReport()
        try:
            await self._clear_kick(tenant)
            pause_s = await self._slice(tenant, lease, report)
        except BaseException:
            # Cancelled, or Postgres is away: nothing is broken, so whoever comes next need not wait.
            await self._give_back(tenant, lease, pause_s=0)
            raise
        finally:
            self._measure(report, time.monotonic() - began)
        await self._give_back(tenant, lease, pause_s=pause_s)
        if pause_s == 0:
            # In this order: a drain asked for until now found the lease taken, and one asked for from now on does not.
            await self._clear_kick(tenant)
            async with self._database.tenant(tenant) as connection:
                report.more = await backlog.has_due_work(tenant, connection)
            # With the embedder away the rest would be found due again at once; the sweep comes back to it.
            report.more = report.more and report.obstacle in (None, "lease", "contention")
        return report

    async def _slice(self, tenant: TenantId, lease: Lease, report: DrainReport) -> float:
        """Feed every generation in turns; returns for how long the tenant is to be left alone."""
        tenure = Tenure(tenant, self._database, lease, limits=self._limits, stopping=self._stopping)
        try:
            async with self._database.tenant(tenant) as connection:
                lives = await fed_generations(tenant, connection)
            feeds = [self._feed(tenant, life, tenure, report=report) for life in lives]
            # The active one comes first in every round: the others' backlog, which may be of the whole tenant, is no
            # reason to let what is searched fall behind.
            while feeds and not tenure.over:
                busy = False
                for feed in tuple(feeds):
                    try:
                        busy = await feed.turn() or busy
                    except Obstructed as obstructed:
                        if feed is feeds[0] or obstructed.obstacle != "index":
                            raise
                        report.obstacle = obstructed.obstacle
                        feeds.remove(feed)
                if not busy:
                    break
        except Obstructed as obstructed:
            report.obstacle = obstructed.obstacle
            return obstructed.pause_s
        except Unavailable:
            report.obstacle = "database"
            raise
        except Exception as error:  # noqa: BLE001 - one tenant's trouble must not become every worker's
            if is_contention(
                error
            ):  # a writer and this drain were in each other's way: whoever comes next need not wait
                report.obstacle = "contention"
                return 0.0
            report.obstacle = "internal"
            log.error(  # noqa: TRY400 - without the message
                "drain_failed", tenant=str(tenant), error=type(error).__name__, where=origin(error)
            )
            return self._limits.pause_s
        return 0.0

    def _feed(self, tenant: TenantId, life: GenerationLife, tenure: Tenure, *, report: DrainReport) -> CollectionFeed:
        embedding = TextEmbedding(
            tenant,
            life.generation,
            database=self._database,
            embedder=self._embedder,
            limits=self._limits,
            report=report,
            shares_vectors=life.shares_vectors,
        )
        return CollectionFeed(
            tenant,
            life.generation,
            database=self._database,
            index=self._index,
            embedding=embedding,
            tenure=tenure,
            limits=self._limits,
            report=report,
        )

    async def _give_back(self, tenant: TenantId, lease: Lease, *, pause_s: float) -> None:
        with contextlib.suppress(Unavailable):
            await release_lease(tenant, self._database, lease, pause_s=pause_s)

    @staticmethod
    def _measure(report: DrainReport, seconds: float) -> None:
        for outcome in ("indexed", "overtaken", "refused", "removed"):
            metrics.DRAINED_ROWS.labels(outcome).inc(getattr(report, outcome))
        if report.obstacle:
            metrics.DRAIN_FAILURES.labels(report.obstacle).inc()
        metrics.DRAIN_SECONDS.observe(seconds)

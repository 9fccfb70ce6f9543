"""What all tasks of a worker process share: one event loop in a thread of its own, and the connections made in it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.clients.chat import ChatModel
from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.clients.health import redis_check
from memplane_core.clients.jobs import kick_key
from memplane_core.clients.uses import UseReports
from memplane_core.clients.valkey import valkey_client
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.health import HealthChecks
from memplane_core.security.internal import InternalTokens
from memplane_core.storage.session import Database
from memplane_core.vectors import MilvusIndex
from memplane_maintenance.access import AccessFold
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.idle import IdleRelease
from memplane_maintenance.jobs import JobRunner, all_jobs
from memplane_maintenance.jobs.erase_copies import ValkeyCopies
from memplane_maintenance.jobs.reconcile_watch import IndexWatch
from memplane_maintenance.jobs.schedule import Scheduler
from memplane_maintenance.measuring import Measures
from memplane_maintenance.reports import Reporter, beat_check
from memplane_maintenance.retirement import Retirement
from memplane_maintenance.settings import MaintenanceSettings
from memplane_maintenance.sweep import Sweep

T = TypeVar("T")


class Parts:
    """The work that tasks do, with its connections. Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        index: MilvusIndex,
        embedder: HttpEmbedder,
        broker: Redis,
        cache: Redis,
        *,
        chat: ChatModel | None,
        settings: MaintenanceSettings,
        stopping: Callable[[], bool],
    ) -> None:
        worker = settings.worker
        self.database = database
        self.index = index
        self.broker = broker
        self.drainer = Drainer(
            database,
            index,
            embedder,
            limits=DrainLimits(
                lease_s=worker.lease_s,
                slice_s=worker.slice_s,
                fresh_s=worker.fresh_s,
                embed_timeout_s=worker.embed_timeout_s,
                rpc_timeout_s=index.rpc_timeout_s,
            ),
            stopping=stopping,
            clear_kick=self._clear_kick,
        )
        self.jobs = JobRunner(
            database,
            all_jobs(
                database,
                index,
                self.drainer.drain,
                rpc_timeout_s=index.rpc_timeout_s,
                copies=ValkeyCopies(cache, broker),
                profile=embedder.profile,
                chat=chat,
            ),
            lease_s=worker.lease_s,
            slice_s=worker.slice_s,
            stopping=stopping,
        )
        self.retirement = Retirement(database, index, slice_s=worker.slice_s)
        self.sweep = Sweep(database, broker)
        self.access = AccessFold(database, cache)
        self.idle = IdleRelease(index, cache, idle_s=worker.idle_release_s)
        self.scheduler = Scheduler(database, broker, has_llm=chat is not None)
        self.watch = IndexWatch(database, index, broker, every_s=worker.reconcile_every_s)
        self.health = HealthChecks(
            "worker",
            needed={"postgres": database.ping, "broker": redis_check(broker), "index": index.ping},
            helpful={"cache": redis_check(cache), "beat": beat_check(broker)},
        )
        self.measures = Measures(database, defaults=settings.limits.effective())
        self.reporter = Reporter(self.health, broker, cache)

    async def _clear_kick(self, tenant: TenantId) -> None:
        with suppress(RedisError):  # it ends by itself within seconds
            await self.broker.delete(kick_key(tenant))

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: MaintenanceSettings, *, stopping: Callable[[], bool]) -> AsyncGenerator[Self]:
        """Make them for as long as the context lasts. Nothing has to be there yet."""
        async with AsyncExitStack() as stack:
            most = settings.limits.stored_memories
            database = await stack.enter_async_context(Database.open(settings.postgres, stored_memories=most))
            index = MilvusIndex(settings.milvus)
            stack.push_async_callback(index.close)
            tokens = InternalTokens(*settings.trust.secrets)
            embedder = HttpEmbedder(settings.endpoints.embedding_url, tokens)
            stack.push_async_callback(embedder.close)
            chat = None if settings.llm is None else ChatModel(settings.llm)
            if chat is not None:
                stack.push_async_callback(chat.close)
            broker, cache = (
                valkey_client(
                    url.get_secret_value(), timeout_s=settings.redis.timeout_s, tls=settings.redis.tls_options(url)
                )
                for url in (settings.redis.broker_url, settings.redis.cache_url)
            )
            stack.push_async_callback(broker.aclose)
            stack.push_async_callback(cache.aclose)
            await stack.enter_async_context(UseReports(index.uses, cache).running())
            parts = cls(database, index, embedder, broker, cache, chat=chat, settings=settings, stopping=stopping)
            await stack.enter_async_context(parts.reporter.running())
            await stack.enter_async_context(parts.measures.running())
            yield parts


class Runtime:
    """Runs coroutines of task threads in the process's one event loop.

    Made before the pool's threads: `-P threads` never forks, so all of them share it.
    """

    def __init__(self, settings: MaintenanceSettings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._parts: Parts | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the loop and make the parts in it.

        Raises:
            ValueError: Settings that do not fit together.
        """
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", name="runtime"))
            opened = Parts.open(self._settings, stopping=lambda: self._stopping)
            self._parts = stack.enter_context(portal.wrap_async_context_manager(opened))
            self._portal = portal
            self._stack = stack.pop_all()

    @property
    def parts(self) -> Parts:
        """What tasks work with. Raises RuntimeError before `start`."""
        if self._parts is None:
            raise RuntimeError("the runtime has not been started")
        return self._parts

    def wind_down(self) -> None:
        """Let slices end with the batch they are at."""
        self._stopping = True

    def close(self) -> None:
        """Give back the connections and end the loop. No task runs any more."""
        self._stack.close()
        self._portal, self._parts = None, None

    def run_async(self, work: Callable[[], Awaitable[T]], *, deadline_s: float) -> T:
        """Run `work` in the loop and wait for it, from any other thread.

        Raises:
            TimeoutError: It took longer than `deadline_s`, and was cancelled.
        """
        if self._portal is None:
            raise RuntimeError("the runtime has not been started")
        return self._portal.call(_bounded, work, deadline_s)

    def answers(self, *, within_s: float) -> bool:
        """Whether the loop gets round to new work in time: it is not blocked, and has not died."""
        if self._portal is None:
            return False
        try:
            self._portal.start_task_soon(asyncio.sleep, 0).result(within_s)
        except (FutureTimeoutError, RuntimeError):
            return False
        return True


async def _bounded(work: Callable[[], Awaitable[T]], deadline_s: float) -> T:
    async with asyncio.timeout(deadline_s):
        return await work()

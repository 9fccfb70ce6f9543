"""What a worker tells of itself and of the stores it sees, every few seconds: in its metrics, and on the board."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.background import beside
from memplane_core.clients.reports import ReportBoard
from memplane_core.contracts.jobs import ACCESS_STREAM, BEAT_LOCK, QUEUE_INDEX, QUEUE_MAINTENANCE
from memplane_core.contracts.system import REPORT_EVERY_S, WorkerReport
from memplane_core.observability.health import HealthChecks
from memplane_core.observability.logs import get_logger
from memplane_maintenance import metrics

log = get_logger(__name__)


class BeatAway(Exception):
    """No beat has said for a while that it is in charge."""


class Reporter:
    """Looks at what no other process sees: queues, the beat, recalls that wait.

    Args:
        health: The worker's parts.
        broker: With the queues.
        cache: With the stream of recalls and the board.
    """

    def __init__(self, health: HealthChecks, broker: Redis, cache: Redis) -> None:
        self._health = health
        self._broker = broker
        self._cache: Any = cache
        self._board = ReportBoard(cache)
        self._worker = uuid.uuid4().hex[:12]
        self._told = True

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Report for as long as the context lasts."""
        try:
            async with beside(self._always(), name="report"):
                yield
        finally:
            with suppress(RedisError, OSError, TimeoutError):
                await self._board.take_back(self._worker)

    async def report(self) -> WorkerReport:
        """Look once, and tell."""
        health = await self._health.look()
        report = WorkerReport(
            worker=self._worker,
            at=time.time(),
            parts={part: "ok" if state == "ok" else "unavailable" for part, state in health.parts.items()},
            queues=await self._queues(),
            access_s=await self._access_s(),
        )
        metrics.HEARTBEAT.set(report.at)
        for queue, waiting in report.queues.items():
            metrics.QUEUE_MESSAGES.labels(queue).set(waiting)
        metrics.ACCESS_LAG.set(report.access_s)
        try:
            await self._board.put(report)
        except (RedisError, OSError, TimeoutError) as error:
            if self._told:
                log.warning("not_reported", error=type(error).__name__)
            self._told = False
        else:
            self._told = True
        return report

    async def _always(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(REPORT_EVERY_S)

    async def _queues(self) -> dict[str, int]:
        try:
            async with self._broker.pipeline(transaction=False) as pipe:
                for queue in _QUEUES:
                    pipe.llen(queue)  # pyright: ignore[reportUnusedCoroutine, reportGeneralTypeIssues]
                return dict(zip(_QUEUES, cast("list[int]", await pipe.execute()), strict=True))
        except (RedisError, OSError, TimeoutError):
            return {}

    async def _access_s(self) -> float:
        """Age of the oldest recall in the stream, whose ids begin with the milliseconds at which they came."""
        try:
            oldest = cast("list[tuple[bytes, object]]", await self._cache.xrange(ACCESS_STREAM, count=1))
        except (RedisError, OSError, TimeoutError):
            return 0.0
        return max(round(time.time() - int(oldest[0][0].split(b"-")[0]) / 1000, 3), 0.0) if oldest else 0.0


_QUEUES: Final = (QUEUE_INDEX, QUEUE_MAINTENANCE)


def beat_check(broker: Redis) -> Any:
    """A check that a beat is in charge: it holds the lock, which ends 15 s after its last sign."""

    async def check() -> None:
        if not await cast("Any", broker).exists(BEAT_LOCK):
            raise BeatAway

    return check

"""When collections were last used, as every process that uses them tells all others; losing some costs a load."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.background import beside
from memplane_core.contracts.jobs import USES_KEY
from memplane_core.domain.collections import Uses

log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

REPORT_EVERY_S: Final = 60.0


class UseReports:
    """Tells what an index notes, in one command however many collections there are.

    Args:
        uses: Of the process's index.
        cache: Where it is told.
        every_s: Seconds between two reports.
    """

    def __init__(self, uses: Uses, cache: Redis, *, every_s: float = REPORT_EVERY_S) -> None:
        self._uses = uses
        self._cache = cache
        self._every_s = every_s

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Report in the background for as long as the context lasts, and once at its end."""
        try:
            async with beside(self._report_always(), name="report uses"):
                yield
        finally:
            await self.report()

    async def report(self) -> None:
        """Tell what is new. What cannot be told now is told the next time; never raises."""
        taken = self._uses.take()
        if not taken:
            return
        try:
            await self._cache.zadd(USES_KEY, taken, gt=True)
        except (RedisError, OSError, TimeoutError) as error:
            self._uses.put_back(taken)
            log.warning("uses_not_reported", error=type(error).__name__, collections=len(taken))

    async def _report_always(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.report()

"""What workers tell about themselves and the stores they see, through the cache server; losing some costs nothing."""

import time
from collections.abc import Mapping
from typing import cast

import msgspec
from redis.asyncio import Redis

from memplane_core.contracts.system import REPORT_GOOD_S, REPORTS_KEY, WorkerReport


class ReportBoard:
    """Where they are kept: the latest of each.

    Args:
        cache: The cache server. Decodes nothing.
    """

    def __init__(self, cache: Redis) -> None:
        self._cache = cache

    async def put(self, report: WorkerReport) -> None:
        """Replace the worker's last one. Raises redis.RedisError."""
        async with self._cache.pipeline(transaction=False) as pipe:
            pipe.hset(REPORTS_KEY, report.worker, msgspec.json.encode(report))  # pyright: ignore[reportUnknownMemberType]
            pipe.expire(REPORTS_KEY, int(REPORT_GOOD_S * 20))
            await pipe.execute()

    async def take_back(self, worker: str) -> None:
        """Forget a worker that ends. Raises redis.RedisError."""
        await self._cache.hdel(REPORTS_KEY, worker)  # pyright: ignore[reportGeneralTypeIssues]

    async def read(self) -> list[WorkerReport]:
        """Reports that still count, the latest first; others are removed. Raises redis.RedisError."""
        found = cast("Mapping[bytes, bytes]", await self._cache.hgetall(REPORTS_KEY))  # pyright: ignore[reportGeneralTypeIssues]
        good: list[WorkerReport] = []
        gone: list[bytes] = []
        for worker, raw in found.items():
            try:
                report = msgspec.json.decode(raw, type=WorkerReport)
            except msgspec.MsgspecError:
                gone.append(worker)
                continue
            if time.time() - report.at > REPORT_GOOD_S:
                gone.append(worker)
            else:
                good.append(report)
        if gone:
            await self._cache.hdel(REPORTS_KEY, *gone)  # pyright: ignore[reportGeneralTypeIssues]
        return sorted(good, key=lambda report: -report.at)

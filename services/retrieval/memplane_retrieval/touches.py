"""Which memories were recalled, on their way to the access stream; losing some harms nobody."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final
from uuid import UUID

import msgspec
from prometheus_client import Counter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.background import beside
from memplane_core.contracts.jobs import ACCESS_STREAM
from memplane_core.domain.tenancy import TenantId

_WAITING: Final = 10_000
_STREAM_LENGTH: Final = 200_000

_LOST = Counter("memplane_retrieval_touches_lost_total", "Recalls that never reached the access stream.")


class _Touch(msgspec.Struct, frozen=True):
    tenant: TenantId
    ids: tuple[UUID, ...]
    at: float


class Touches:
    """A bounded queue in front of the stream, so that a search never waits for Valkey."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._queue: asyncio.Queue[_Touch] = asyncio.Queue(_WAITING)

    def add(self, tenant: TenantId, ids: Sequence[UUID], *, at: float) -> None:
        """Say that these were recalled at `at` (epoch seconds). Returns at once and never raises."""
        if not ids:
            return
        try:
            self._queue.put_nowait(_Touch(tenant, tuple(ids), at))
        except asyncio.QueueFull:
            _LOST.inc()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Send in the background for as long as the context lasts; what waits at its end is sent if Valkey is there."""
        async with beside(self._send_all(), name="send touches"):
            try:
                yield
            finally:
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await self._queue.join()

    async def _send_all(self) -> None:
        while True:
            touch = await self._queue.get()
            try:
                await self._redis.xadd(
                    ACCESS_STREAM,
                    {"tenant": str(touch.tenant), "at": repr(touch.at), "ids": ",".join(map(str, touch.ids))},
                    maxlen=_STREAM_LENGTH,
                    approximate=True,
                )
            except (RedisError, OSError, TimeoutError):
                _LOST.inc()
            finally:
                self._queue.task_done()

"""Takes collections that nobody uses out of Milvus's memory. Their next use has them loaded again."""

import time
from typing import Final, cast

from prometheus_client import Counter, Gauge
from redis.asyncio import Redis

from memplane_core.contracts.jobs import USES_KEY
from memplane_core.domain.collections import CollectionName
from memplane_core.domain.ports import VectorIndex
from memplane_core.observability.logs import get_logger

log = get_logger(__name__)

_RUN_S: Final = 60.0
_FORGOTTEN_AFTER_S: Final = 7 * 24 * 3600.0

_LOADED = Gauge("memplane_maintenance_collections_loaded", "Collections in the memory of the vector index.")
_RELEASED = Counter("memplane_maintenance_collections_released_total", "Collections released because nobody used them.")


class IdleRelease:
    """Releases what was not searched or written for a while. Two at once, or one use too many, cost only a load.

    Args:
        index: Whose collections.
        cache: Where uses are reported (`clients.uses`).
        idle_s: Seconds without a use after which a collection is idle; 0 to keep all.
    """

    def __init__(self, index: VectorIndex, cache: Redis, *, idle_s: float) -> None:
        self._index = index
        self._cache = cache
        self._idle_s = idle_s

    async def run(self) -> list[CollectionName]:
        """Release what is idle, the longest unused first, for up to a minute; returns what went.

        A loaded collection of which no use is known, because the cache forgot it, counts as used now.

        Raises:
            IndexUnavailable: The index is away.
            redis.RedisError: The cache is, and nobody knows what is used.
        """
        if not self._idle_s:
            return []
        loaded = {name.collection: name for name in await self._index.loaded()}
        _LOADED.set(len(loaded))
        now = time.time()
        await self._cache.zremrangebyscore(USES_KEY, "-inf", now - self._idle_s - _FORGOTTEN_AFTER_S)
        if not loaded:
            return []
        await self._cache.zadd(USES_KEY, dict.fromkeys(loaded, now), nx=True)
        released: list[CollectionName] = []
        for text in await self._unused_since(now - self._idle_s):
            if time.time() - now > _RUN_S:
                break
            name = loaded.get(text)
            if name is not None and await self._still_unused(text, now - self._idle_s):
                await self._index.release(name.tenant, name)
                await self._cache.zrem(USES_KEY, text)
                released.append(name)
        if released:
            _RELEASED.inc(len(released))
            log.info("released_idle", collections=len(released), loaded=len(loaded) - len(released))
        return released

    async def _unused_since(self, then: float) -> list[str]:
        found = await self._cache.zrangebyscore(USES_KEY, "-inf", then)
        return [text.decode() for text in cast("list[bytes]", found)]

    async def _still_unused(self, text: str, then: float) -> bool:
        used_at = await self._cache.zscore(USES_KEY, text)
        return used_at is not None and used_at <= then

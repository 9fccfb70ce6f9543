"""Vectors kept in this process and in Valkey, so that a text is computed once.

A key tells whose an entry is and nothing else: behind the tenant's id comes an HMAC over tenant, model, build, input
type and text, under a key of the installation. One tenant can never learn from an answer's speed whether another has a
text, and nobody who reads Valkey can try texts. By the id a tenant's vectors are dropped when somebody is erased
(`clients.vector_cache`).
"""

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np
from cachetools import LRUCache
from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import OpenedState
from redis.exceptions import RedisError

from memplane_core.background import end
from memplane_core.clients.valkey import valkey_client
from memplane_core.clients.vector_cache import DROPS_KEY, LOOK_EVERY_S, cache_prefix, prefix_of
from memplane_core.domain.embedding import EmbedItem, InputType, Window
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_embedding.provider import Embedded, Provider

_KEY_LABEL: Final = b"memplane embedding cache 1"
_ENTRY_OVERHEAD: Final = 700
_MOST_WRITES: Final = 64
_BREAKER_OPEN_S: Final = 5.0
_LAST_WRITES_S: Final = 1.0

_log = get_logger(__name__)


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    windows: list[Window]
    tokens: int
    vectors: bytes


class CacheKeys:
    """Names cache entries; `secret` is shared by all processes of an installation."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), _KEY_LABEL, "sha256")

    def name(self, tenant: TenantId, provider: Provider, *, item: EmbedItem, input_type: InputType) -> bytes:
        """The key of a text's vectors. The text must be encodable."""
        parts = (provider.profile.name, provider.build, input_type, item.head, item.text)
        return cache_prefix(tenant) + hmac.digest(self._key, tenant.bytes + msgspec.msgpack.encode(parts), "sha256")


class SharedCache:
    """Vectors in Valkey. Never raises and never stalls: while Valkey does not answer, it is not asked.

    Args:
        url: Of the cache server.
        timeout_s: Longest wait for one answer.
        ttl_s: How long entries are kept.
        tls: What the client is told of TLS besides the URL.
    """

    def __init__(self, url: str, *, timeout_s: float, ttl_s: int, tls: Mapping[str, Any] | None = None) -> None:
        self._redis = valkey_client(url, timeout_s=timeout_s, tls=tls)
        self._ttl_s = ttl_s
        self._last_writes_s = max(_LAST_WRITES_S, timeout_s)
        self._breakers = AsyncCircuitBreakerFactory(
            default_threshold=2, default_ttl=_BREAKER_OPEN_S, exclude=[asyncio.CancelledError]
        )
        self._writes: set[asyncio.Task[None]] = set()

    async def get(self, keys: Sequence[bytes], *, dim: int) -> dict[bytes, Embedded]:
        """What is known of `keys`."""
        values: Sequence[object] = []
        try:
            async with await self._breakers.get_breaker("get"):
                values = await self._redis.mget(list(keys))
        except OpenedState as opened:
            opened.with_traceback(None)  # one object serves all refusals and would collect their frames
        except (RedisError, OSError, TimeoutError) as error:
            _log.warning("the shared vector cache does not answer", error=str(error))
        found: dict[bytes, Embedded] = {}
        for key, value in zip(keys, values, strict=False):
            if isinstance(value, bytes) and (embedded := _read(value, dim=dim)) is not None:
                found[key] = embedded
        return found

    async def drops(self) -> Mapping[bytes, float]:
        """Whose vectors were dropped within the last day: tenants as hex, and when. Nobody's while Valkey is away."""
        try:
            async with await self._breakers.get_breaker("drops"):
                found = cast("list[tuple[bytes, float]]", await self._redis.zrange(DROPS_KEY, 0, -1, withscores=True))
                return dict(found)
        except OpenedState as opened:
            opened.with_traceback(None)
        except (RedisError, OSError, TimeoutError) as error:
            _log.warning("nobody can tell whose vectors were dropped", error=type(error).__name__)
        return {}

    def put(self, entries: Mapping[bytes, Embedded]) -> None:
        """Store entries soon, in the background; they are let go where writing falls behind."""
        if len(self._writes) >= _MOST_WRITES:
            return
        task = asyncio.get_running_loop().create_task(self._write(dict(entries)))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def close(self) -> None:
        """Finish writes, let go of those that take too long, and give back the connections."""
        if self._writes:
            _, late = await asyncio.wait(self._writes, timeout=self._last_writes_s)
            for task in late:
                await end(task)
        await self._redis.aclose()

    async def _write(self, entries: Mapping[bytes, Embedded]) -> None:
        try:
            async with await self._breakers.get_breaker("put"):
                pipe = self._redis.pipeline(transaction=False)
                for key, embedded in entries.items():
                    stored = _Stored(embedded.windows, embedded.tokens, embedded.vectors.tobytes())
                    pipe.set(key, msgspec.msgpack.encode(stored), ex=self._ttl_s)
                await pipe.execute()
        except OpenedState as opened:
            opened.with_traceback(None)
        except (RedisError, OSError, TimeoutError) as error:
            _log.warning("the shared vector cache takes no writes", error=str(error))


def _read(value: bytes, *, dim: int) -> Embedded | None:
    try:
        stored = msgspec.msgpack.decode(value, type=_Stored)
        vectors = np.frombuffer(stored.vectors, "<f4").reshape(len(stored.windows), dim)
    except (msgspec.DecodeError, ValueError):
        return None
    return Embedded(stored.windows, vectors, stored.tokens)


class VectorCache:
    """Both caches behind one look-up; used in one event loop.

    Args:
        max_bytes: Of vectors kept in this process; 0 keeps none.
        shared: Valkey, where there is one.
    """

    def __init__(self, *, max_bytes: int, shared: SharedCache | None) -> None:
        self._local: LRUCache[bytes, Embedded] = LRUCache(max_bytes, getsizeof=_size)
        self._shared = shared
        self._drops: Mapping[bytes, float] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for tenants whose vectors are to be dropped."""
        if self._shared is not None and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(self._shared), name="dropped vectors")

    async def get(self, keys: Sequence[bytes], *, dim: int) -> dict[bytes, Embedded]:
        """What is known of `keys`, from this process or else from Valkey."""
        found = {key: kept for key in keys if (kept := self._local.get(key)) is not None}
        missing = [key for key in keys if key not in found]
        if missing and self._shared is not None:
            shared = await self._shared.get(missing, dim=dim)
            self._keep(shared)
            found |= shared
        return found

    def put(self, entries: Mapping[bytes, Embedded]) -> None:
        """Keep entries here now and in Valkey soon."""
        self._keep(entries)
        if entries and self._shared is not None:
            self._shared.put(entries)

    async def close(self) -> None:
        """Give back connections."""
        if self._looking is not None:
            await end(self._looking)
            self._looking = None
        if self._shared is not None:
            await self._shared.close()

    async def _look(self, shared: SharedCache) -> None:
        while True:
            known = await shared.drops()
            for tenant, at in known.items():
                if self._drops.get(tenant) != at:
                    self._forget(prefix_of(tenant))
            self._drops = known or self._drops
            await asyncio.sleep(LOOK_EVERY_S)

    def _forget(self, prefix: bytes) -> None:
        for key in [key for key in self._local if key.startswith(prefix)]:
            self._local.pop(key, None)

    def _keep(self, entries: Mapping[bytes, Embedded]) -> None:
        for key, embedded in entries.items():
            if _size(embedded) <= self._local.maxsize:
                self._local[key] = embedded


def _size(embedded: Embedded) -> int:
    return embedded.vectors.nbytes + _ENTRY_OVERHEAD

"""The vectors that the embedding service keeps in Valkey, as others see them: whose they are, and how they go."""

from collections.abc import AsyncGenerator
from typing import Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.domain.errors import Unavailable
from memplane_core.domain.tenancy import TenantId

_PREFIX: Final = b"mp:emb:2:"

DROPS_KEY: Final = "mp:emb:drops"
"""Valkey sorted set: tenants, as hex, by the moment in Valkey's epoch seconds at which their vectors were dropped last.

Whoever keeps vectors in its own memory looks here every `LOOK_EVERY_S`.
"""

LOOK_EVERY_S: Final = 1.0

_FORGOTTEN_AFTER_S: Final = 24 * 3600
_PAGE: Final = 5_000


def cache_prefix(tenant: TenantId) -> bytes:
    """What the names of all entries of a tenant begin with."""
    return prefix_of(tenant.hex.encode())


def prefix_of(tenant_hex: bytes) -> bytes:
    """The same of a tenant as `DROPS_KEY` names it."""
    return _PREFIX + tenant_hex + b":"


async def drop_vectors(tenant: TenantId, cache: Redis) -> int:
    """Drop a tenant's vectors, those of queries too, in Valkey now and in each process within seconds.

    Returns:
        How many were in Valkey.

    Raises:
        Unavailable: Valkey is away.
    """
    try:
        dropped = 0
        # What is stored while this goes on may be passed over; an erasure drops again at its end.
        async for page in _pages(cache, cache_prefix(tenant)):
            dropped += int(await cache.unlink(*page))
        # Told last: a process that forgets sooner could take an entry that is still here, and keep it.
        seconds, micros = await cache.time()
        now = seconds + micros / 1_000_000
        await cache.zadd(DROPS_KEY, {tenant.hex: now})
        await cache.zremrangebyscore(DROPS_KEY, "-inf", now - _FORGOTTEN_AFTER_S)
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable("the cache cannot be reached", retry_after=2) from error
    return dropped


async def _pages(cache: Redis, prefix: bytes) -> AsyncGenerator[list[bytes]]:
    cursor = 0
    while True:
        cursor, keys = cast("tuple[int, list[bytes]]", await cache.scan(cursor, match=prefix + b"*", count=_PAGE))
        if keys:
            yield keys
        if cursor == 0:
            return

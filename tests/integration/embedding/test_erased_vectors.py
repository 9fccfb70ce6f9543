"""Vectors of a tenant are dropped from Valkey at once and from each process within seconds; others keep theirs."""

import time
from collections.abc import AsyncGenerator, Generator
from uuid import uuid4

import anyio
import numpy as np
import pytest
from redis.asyncio import Redis

from memplane_core.clients.vector_cache import cache_prefix, drop_vectors
from memplane_core.domain.embedding import Window
from memplane_core.domain.tenancy import TenantId
from memplane_core.testing.valkey import ValkeyServer
from memplane_embedding.cache import SharedCache, VectorCache
from memplane_embedding.provider import Embedded

pytestmark = pytest.mark.anyio

VECTOR = Embedded([Window(0, 4)], np.ones((1, 3), np.float32), 2)


@pytest.fixture
def url() -> Generator[str]:
    with ValkeyServer() as server:
        yield server.url


@pytest.fixture
async def client(url: str) -> AsyncGenerator[Redis]:
    connected: Redis = Redis.from_url(url, protocol=3)
    yield connected
    await connected.aclose()


async def test_every_process_forgets_a_tenant_whose_vectors_are_dropped(url: str, client: Redis) -> None:
    erased, other = TenantId(uuid4()), TenantId(uuid4())
    keys = [cache_prefix(tenant) + bytes([n]) * 32 for tenant in (erased, other) for n in range(3)]
    caches = [VectorCache(max_bytes=1_000_000, shared=SharedCache(url, timeout_s=5, ttl_s=600)) for _ in range(2)]
    for cache in caches:
        cache.start()
        cache.put(dict.fromkeys(keys, VECTOR))
    deadline = time.monotonic() + 60
    while len(await client.keys("mp:emb:2:*")) < len(keys):
        assert time.monotonic() < deadline
        await anyio.sleep(0.01)

    assert await drop_vectors(erased, client) == 3

    assert sorted(await client.keys("mp:emb:2:*")) == sorted(keys[3:])
    for cache in caches:
        while len(await cache.get(keys, dim=3)) > 3:
            assert time.monotonic() < deadline
            await anyio.sleep(0.05)
        assert sorted(await cache.get(keys, dim=3)) == sorted(keys[3:])
    caches[0].put({keys[0]: VECTOR})  # of a text that is written later
    assert keys[0] in await caches[0].get(keys, dim=3)
    for cache in caches:
        await cache.close()


async def test_a_process_that_reads_a_vector_while_it_is_being_dropped_forgets_it_too(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplane_embedding.cache.LOOK_EVERY_S", 0.01)
    tenant = TenantId(uuid4())
    key = cache_prefix(tenant) + bytes(32)
    cache = VectorCache(max_bytes=1_000_000, shared=SharedCache(url, timeout_s=5, ttl_s=600))
    cache.put({key: VECTOR})
    deadline = time.monotonic() + 60
    while not await client.exists(key):
        assert time.monotonic() < deadline
        await anyio.sleep(0.01)
    cache.start()
    unlink = client.unlink

    async def read_before(*names: bytes) -> int:
        await anyio.sleep(0.3)  # in which whoever was told already has forgotten it
        assert key in await cache.get([key], dim=3)
        return await unlink(*names)

    monkeypatch.setattr(client, "unlink", read_before)
    assert await drop_vectors(tenant, client) == 1
    while await cache.get([key], dim=3):
        assert time.monotonic() < deadline
        await anyio.sleep(0.02)
    await cache.close()

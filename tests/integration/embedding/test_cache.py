"""Vectors are computed once, for one tenant, and never at the price of waiting for a cache."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from memplane_core.domain.embedding import EmbedItem, InputType, Lane, Window
from memplane_core.domain.tenancy import TenantId
from memplane_core.testing.valkey import ValkeyServer
from memplane_embedding.cache import CacheKeys, SharedCache, VectorCache
from memplane_embedding.pool import WorkerPool
from memplane_embedding.provider import Embedded, OnnxProvider
from memplane_embedding.service import EmbeddingService

pytestmark = pytest.mark.anyio

MINILM = "all-MiniLM-L6-v2"


@asynccontextmanager
async def embedding(
    models_dir: Path,
    url: str | None = None,
    *,
    secret: str = "one secret",
    max_bytes: int = 1 << 20,
    timeout_s: float = 10,
) -> AsyncGenerator[EmbeddingService]:
    pool = WorkerPool(workers=2, lane_limit=1000)
    shared = SharedCache(url, timeout_s=timeout_s, ttl_s=60) if url else None
    service = EmbeddingService(
        {MINILM: OnnxProvider(models_dir / MINILM, pool)},
        default=MINILM,
        cache=VectorCache(max_bytes=max_bytes, shared=shared),
        keys=CacheKeys(secret),
        max_text_bytes=10_000,
    )
    await service.start()
    yield service
    await service.close()
    pool.close()


async def embed(
    service: EmbeddingService,
    tenant: TenantId,
    *texts: str,
    head: str = "",
    input_type: InputType = "passage",
    lane: Lane = "write",
) -> list[Embedded]:
    items = [EmbedItem(text, head=head) for text in texts]
    return await service.embed(tenant, items, model="", input_type=input_type, lane=lane)


class Computed:
    """How many texts were computed since it was made."""

    def __init__(self) -> None:
        self._before = self._total()

    @property
    def since(self) -> int:
        return int(self._total() - self._before)

    def _total(self) -> float:
        name = "memplane_embedding_texts_total"
        labels = ({"model": MINILM, "lane": lane, "source": "computed"} for lane in ("query", "write", "bulk"))
        return sum(REGISTRY.get_sample_value(name, label) or 0 for label in labels)


class TestOwnCache:
    async def test_text_is_computed_once_and_twins_of_a_request_too(self, models_dir: Path, tenant: TenantId) -> None:
        async with embedding(models_dir) as service:
            computed = Computed()
            first = await embed(service, tenant, "a", "b", "a")
            again = await embed(service, tenant, "b", "a")
            assert computed.since == 2
            assert first[0].vectors.tobytes() == first[2].vectors.tobytes() == again[1].vectors.tobytes()
            assert first[1].vectors.tobytes() == again[0].vectors.tobytes() != again[1].vectors.tobytes()

    async def test_nothing_is_shared_between_tenants_types_or_heads(self, models_dir: Path, tenant: TenantId) -> None:
        async with embedding(models_dir) as service:
            computed = Computed()
            await embed(service, tenant, "a secret plan")
            await embed(service, TenantId(uuid4()), "a secret plan")
            await embed(service, tenant, "a secret plan", input_type="query", lane="query")
            await embed(service, tenant, "a secret plan", head="Mia: ")
            await embed(service, tenant, "plan", head="a secret ")
            assert computed.since == 5

    async def test_cached_query_costs_far_less_than_a_millisecond(self, models_dir: Path, tenant: TenantId) -> None:
        async with embedding(models_dir) as service:
            await embed(service, tenant, "hot", input_type="query", lane="query")
            times: list[float] = []
            for _ in range(50):
                began = time.perf_counter()
                await embed(service, tenant, "hot", input_type="query", lane="query")
                times.append(time.perf_counter() - began)
            assert min(times) < 0.0005

    async def test_bulk_work_pushes_nothing_out(self, models_dir: Path, tenant: TenantId) -> None:
        async with embedding(models_dir) as service:
            await embed(service, tenant, "bulk", lane="bulk")
            computed = Computed()
            await embed(service, tenant, "bulk", lane="bulk")
            assert computed.since == 1

    async def test_stays_within_its_bytes(self, models_dir: Path, tenant: TenantId) -> None:
        async with embedding(models_dir, max_bytes=10_000) as service:
            await embed(service, tenant, *(f"text {n}" for n in range(10)))
            computed = Computed()
            await embed(service, tenant, "text 9")
            assert computed.since == 0
            await embed(service, tenant, "text 0")
            assert computed.since == 1


class TestFaults:
    async def test_bad_text_fails_alone_and_is_not_cached(self, models_dir: Path, tenant: TenantId) -> None:
        async with embedding(models_dir) as service:
            empty, half, long, good = await embed(service, tenant, "", "\udcff", "x" * 10_001, "good")
            assert [empty.error, half.error, long.error, good.error] == [
                "is empty; there is nothing to embed",
                "holds half of a surrogate pair, which is no text",
                "has 10001 bytes; at most 10000 are taken",
                None,
            ]
            assert good.vectors.shape == (1, 384)


class TestValkey:
    async def test_other_process_finds_the_same_bytes_but_no_other_tenant_or_installation(
        self, models_dir: Path, valkey: ValkeyServer, tenant: TenantId
    ) -> None:
        url = valkey.url_of(2)
        async with embedding(models_dir, url) as one:
            (first,) = await embed(one, tenant, "the plan is to meet at noon " * 100)
        async with embedding(models_dir, url) as other:
            computed = Computed()
            (second,) = await embed(other, tenant, "the plan is to meet at noon " * 100)
            assert computed.since == 0
            assert len(first.windows) > 1
            assert (first.windows, first.tokens) == (second.windows, second.tokens)
            assert first.vectors.tobytes() == second.vectors.tobytes()
            await embed(other, TenantId(uuid4()), "the plan is to meet at noon " * 100)
            assert computed.since == 1
        async with embedding(models_dir, url, secret="another secret") as foreign:
            computed = Computed()
            await embed(foreign, tenant, "the plan is to meet at noon " * 100)
            assert computed.since == 1

    async def test_entries_expire_and_name_no_text(
        self, models_dir: Path, valkey: ValkeyServer, tenant: TenantId
    ) -> None:
        async with embedding(models_dir, valkey.url_of(3)) as service:
            await embed(service, tenant, "meet at noon")
        async with Redis.from_url(valkey.url_of(3)) as redis:
            keys = await redis.keys("*")
            assert len(keys) == 1
            assert 0 < await redis.ttl(keys[0]) <= 60
            assert "noon" not in f"{keys[0]!r} {await redis.get(keys[0])!r}"

    async def test_damaged_entries_are_computed_anew(
        self, models_dir: Path, valkey: ValkeyServer, tenant: TenantId
    ) -> None:
        url = valkey.url_of(4)
        async with embedding(models_dir, url) as service:
            await embed(service, tenant, "x")
        async with Redis.from_url(url) as redis:
            for key in await redis.keys("*"):
                await redis.set(key, b"\x93\x90\x01\xc4\x01?")
        async with embedding(models_dir, url) as service:
            computed = Computed()
            (found,) = await embed(service, tenant, "x")
            assert computed.since == 1
            assert found.vectors.shape == (1, 384)

    async def test_server_that_dies_and_returns_is_no_error(self, models_dir: Path, tenant: TenantId) -> None:
        with ValkeyServer() as valkey:
            async with embedding(models_dir, valkey.url, max_bytes=0) as service:
                await embed(service, tenant, "x")
                valkey.kill()
                began = time.perf_counter()
                for n in range(20):
                    await embed(service, tenant, f"text {n}")
                assert time.perf_counter() - began < 5
                valkey.start()
                deadline = time.monotonic() + 20
                computed = Computed()
                while True:
                    await embed(service, tenant, "y")
                    before = computed.since
                    await embed(service, tenant, "y")
                    if computed.since == before:
                        break
                    assert time.monotonic() < deadline, "the cache was not used again"
                    await asyncio.sleep(0.2)

    async def test_server_that_hangs_stalls_nobody(self, models_dir: Path, tenant: TenantId) -> None:
        with silent_server() as port:
            url = f"redis://127.0.0.1:{port}/0"
            async with embedding(models_dir, url, max_bytes=0, timeout_s=0.5) as service:
                began = time.perf_counter()
                for n in range(20):
                    await embed(service, tenant, f"text {n}")
                assert time.perf_counter() - began < 4  # without a breaker it would be ten seconds

    async def test_writes_to_one_that_hangs_end_before_the_connections_are_given_back(self) -> None:
        with silent_server() as port:
            shared = SharedCache(f"redis://127.0.0.1:{port}/0", timeout_s=3, ttl_s=60)
            shared._last_writes_s = 0.05  # pyright: ignore[reportPrivateUsage] - as if they had waited for longer
            shared.put({b"key": Embedded([Window(0, 4)], np.ones((1, 3), np.float32), 2)})
            await asyncio.sleep(0)
            await shared.close()
            assert [task.get_name() for task in asyncio.all_tasks() if "_write" in repr(task.get_coro())] == []


@contextmanager
def silent_server() -> Generator[int]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in held:
            connection.close()

"""The worker and the beat as real processes on a real Valkey, Postgres and Milvus Lite."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from uuid import UUID

import httpx2
import pytest
from redis.asyncio import Redis

from memplane_core.clients.jobs import CeleryKicker
from memplane_core.contracts.jobs import ACCESS_STREAM, QUEUE_MAINTENANCE
from memplane_core.settings import MilvusSettings, PostgresSettings, RedisSettings
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.rows import eventually
from memplane_core.testing.valkey import ValkeyServer
from memplane_core.vectors import MilvusIndex

pytestmark = pytest.mark.anyio

Environment = dict[str, str]


@pytest.fixture(scope="module")
def milvus() -> Generator[MilvusLite]:
    with MilvusLite() as server:
        yield server


@pytest.fixture
def broker() -> Generator[ValkeyServer]:
    """A broker that forgets everything when it is killed."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def environment(broker: ValkeyServer, milvus: MilvusLite, postgres_settings: PostgresSettings) -> Environment:
    return {
        "MEMPLANE_POSTGRES__URL": postgres_settings.url.get_secret_value(),
        "MEMPLANE_REDIS__BROKER_URL": broker.url,
        "MEMPLANE_REDIS__CACHE_URL": broker.url_of(1),
        "MEMPLANE_MILVUS__URI": milvus.uri,
        "MEMPLANE_MILVUS__TIMEOUT_S": "4",
        "MEMPLANE_WORKER__LEASE_S": "10",
        "MEMPLANE_TRUST__INTERNAL_SECRET": "internal secret of the tests, long enough",
    }


@pytest.fixture
def worker(environment: Environment) -> Generator[ServiceProcess]:
    with ServiceProcess("memplane_maintenance", "worker", env=environment) as process:
        yield process


@pytest.fixture
def beat(environment: Environment) -> Generator[ServiceProcess]:
    with ServiceProcess("memplane_maintenance", "beat", env=environment) as process:
        yield process


@pytest.fixture
async def index(milvus: MilvusLite) -> AsyncGenerator[MilvusIndex]:
    index = MilvusIndex(MilvusSettings(uri=milvus.uri))
    yield index
    await index.close()


def kicker(broker: ValkeyServer) -> CeleryKicker:
    made = CeleryKicker(RedisSettings.model_validate({"broker_url": broker.url, "cache_url": broker.url}))
    made.start()
    return made


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float, pause_s: float = 0.05) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - another process does not tell
            await asyncio.sleep(pause_s)


async def waiting(desk: MemoryDesk) -> int:
    """Upserts that are not done."""
    async with desk.database.tenant(desk.tenant) as connection:
        return await connection.fetchval(
            "SELECT count(*) FROM outbox WHERE tenant_id = $1 AND op = 'upsert' AND done_at IS NULL", desk.tenant
        )


async def assert_indexed_once(desk: MemoryDesk, index: MilvusIndex, *, memories: int) -> None:
    keys = await desk.current_keys()
    generation = await desk.generation()
    assert len(keys) == memories
    assert await index.keys_present(desk.tenant, generation, sorted(keys)) == keys
    assert await index.count(desk.tenant, generation) == memories


async def write_many(desk: MemoryDesk, count: int) -> list[UUID]:
    return await desk.write(*(f"memory number {n}" for n in range(count)))


class TestWorker:
    @pytest.mark.usefixtures("worker")
    async def test_a_kick_gets_writes_indexed_at_once(
        self, desk: MemoryDesk, broker: ValkeyServer, index: MilvusIndex
    ) -> None:
        await write_many(desk, 200)
        sender = kicker(broker)
        sender.kick(desk.tenant)
        await until(lambda: _none_waiting(desk), timeout_s=20)
        await asyncio.to_thread(sender.close)
        await assert_indexed_once(desk, index, memories=200)

    @pytest.mark.usefixtures("beat")
    async def test_killed_in_the_middle_and_started_again_all_is_indexed_once(
        self, desk: MemoryDesk, worker: ServiceProcess, index: MilvusIndex
    ) -> None:
        await write_many(desk, 1_500)

        async def some_are_done() -> bool:
            return await waiting(desk) < 1_500

        await until(some_are_done, timeout_s=30, pause_s=0.005)  # the sweep found them: nobody kicked
        await asyncio.to_thread(worker.kill)
        left = await waiting(desk)
        assert 0 < left < 1_500
        await asyncio.to_thread(worker.start)
        await until(lambda: _none_waiting(desk), timeout_s=60)
        await assert_indexed_once(desk, index, memories=1_500)

    async def test_term_ends_the_slice_with_the_batch_under_way_and_gives_the_lease_back(
        self, desk: MemoryDesk, worker: ServiceProcess, broker: ValkeyServer
    ) -> None:
        await write_many(desk, 1_500)
        sender = kicker(broker)
        sender.kick(desk.tenant)

        async def some_are_done() -> bool:
            return await waiting(desk) < 1_500

        await until(some_are_done, timeout_s=20, pause_s=0.005)
        await asyncio.to_thread(sender.close)
        began = time.monotonic()
        await asyncio.to_thread(worker.stop)
        assert time.monotonic() - began < 8  # it was not killed after its grace of ten
        assert 0 < await waiting(desk) < 1_500
        async with desk.database.tenant(desk.tenant) as connection:
            assert await connection.fetchval("SELECT expires_at <= clock_timestamp() FROM lease")
            assert await connection.fetchval("SELECT max(attempts) FROM outbox") == 0

    async def test_valkey_stopped_and_started_empty_indexing_resumes(
        self,
        desk: MemoryDesk,
        worker: ServiceProcess,
        beat: ServiceProcess,
        broker: ValkeyServer,
        index: MilvusIndex,
    ) -> None:
        await write_many(desk, 100)
        await until(lambda: _none_waiting(desk), timeout_s=30)
        await asyncio.to_thread(broker.kill)
        await desk.write(*(f"written meanwhile {n}" for n in range(100)))
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
            for process in (worker, beat):
                url = process.url

                async def not_ready(url: str = url) -> bool:
                    return (await http.get(url + "/readyz")).status_code == 503

                await until(not_ready, timeout_s=20)
                assert (await http.get(url + "/healthz")).status_code == 200
        await asyncio.to_thread(broker.start)
        await until(lambda: _none_waiting(desk), timeout_s=60)
        assert worker.running
        assert beat.running
        await assert_indexed_once(desk, index, memories=200)

    @pytest.mark.usefixtures("worker", "beat")
    async def test_recalls_are_folded_within_seconds(self, desk: MemoryDesk, broker: ValkeyServer) -> None:
        [memory_id] = await desk.write("one")
        async with desk.database.tenant(desk.tenant) as connection:
            await connection.execute("UPDATE memory_usage SET last_accessed_at = '2020-01-01'")
        cache: Redis = Redis.from_url(broker.url_of(1), protocol=3)
        fields = {"tenant": str(desk.tenant), "at": str(time.time()), "ids": str(memory_id)}
        await cache.xadd(ACCESS_STREAM, fields)  # pyright: ignore[reportArgumentType]

        async def counted() -> bool:
            async with desk.database.tenant(desk.tenant) as connection:
                return await connection.fetchval("SELECT access_count FROM memory_usage") == 1

        await until(counted, timeout_s=20)
        await cache.aclose()


class TestBeat:
    async def test_without_workers_it_stops_adding_tasks(self, beat: ServiceProcess, broker: ValkeyServer) -> None:
        client: Redis = Redis.from_url(broker.url, protocol=3)
        async with client.pipeline() as pipe:
            for _ in range(150):
                pipe.lpush(QUEUE_MAINTENANCE, "{}")
            await pipe.execute()

        await until(lambda: _count(beat, "queue_is_long", at_least=3), timeout_s=30)
        length = await client.llen(QUEUE_MAINTENANCE)
        assert length - 150 <= 4  # what it sent before the queue was long
        await until(lambda: _count(beat, "queue_is_long", at_least=6), timeout_s=30)
        assert await client.llen(QUEUE_MAINTENANCE) == length
        await client.aclose()

    async def test_another_takes_over_when_the_one_in_charge_is_killed(
        self, beat: ServiceProcess, environment: Environment, broker: ValkeyServer
    ) -> None:
        client: Redis = Redis.from_url(broker.url, protocol=3)

        async def sent() -> bool:
            return await client.llen(QUEUE_MAINTENANCE) > 0

        await until(sent, timeout_s=20)
        with ServiceProcess("memplane_maintenance", "beat", env=environment) as standby:
            assert standby.running
            await asyncio.to_thread(beat.kill)
            await client.delete(QUEUE_MAINTENANCE)
            await until(sent, timeout_s=40)
        await client.aclose()


class TestHealth:
    async def test_says_how_it_is_and_what_it_measures(self, desk: MemoryDesk, worker: ServiceProcess) -> None:
        async with httpx2.AsyncClient(base_url=worker.url, timeout=60, trust_env=False) as http:
            assert (await http.get("/healthz")).json() == {"status": "ok", "parts": {}}

            async def health() -> dict[str, object]:
                return (await http.get("/readyz")).json()

            every = {
                "status": "degraded",  # no beat is in charge here
                "parts": {
                    **dict.fromkeys(("consumer", "postgres", "broker", "index", "cache"), "ok"),
                    "beat": "unavailable",
                },
            }
            # On a busy machine a part may not answer in the time that it has.
            assert await eventually(health, lambda told: told == every) == every
            metrics = (await http.get("/metrics")).text
            assert "memplane_maintenance_drain_seconds_bucket" in metrics
            naming = {line.split("{")[0] for line in metrics.splitlines() if str(desk.tenant) in line}
            assert all(name.startswith("memplane_tenant_") for name in naming)
            assert (await http.get("/else")).status_code == 404


class TestConfiguration:
    def test_what_is_missing_is_named_and_the_process_stops_with_78(self) -> None:
        for role, missing in (("worker", "MEMPLANE_POSTGRES"), ("beat", "MEMPLANE_REDIS")):
            done = _run(role, {})
            assert done.returncode == 78
            assert missing in done.stderr

    def test_a_broker_that_evicts_is_refused(self, environment: Environment, broker: ValkeyServer) -> None:
        async def let_it_evict() -> None:
            client: Redis = Redis.from_url(broker.url, protocol=3)
            await client.config_set("maxmemory", "100mb")
            await client.config_set("maxmemory-policy", "allkeys-lru")
            await client.aclose()

        asyncio.run(let_it_evict())
        done = _run("worker", environment)
        assert done.returncode == 78
        assert "allkeys-lru" in done.stderr

    def test_a_lease_that_covers_no_call_is_refused(self, environment: Environment) -> None:
        done = _run("worker", {**environment, "MEMPLANE_WORKER__LEASE_S": "3"})
        assert done.returncode == 78
        assert "a lease of 3 s cannot cover" in done.stderr

    def test_any_other_word_shows_how_to_call_it(self) -> None:
        done = _run("sing", {})
        assert done.returncode == 2
        assert "worker|beat" in done.stderr


async def _count(process: ServiceProcess, words: str, *, at_least: int) -> bool:
    return process.log().count(words) >= at_least


async def _none_waiting(desk: MemoryDesk) -> bool:
    return await waiting(desk) == 0


def _run(role: str, environment: Environment) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memplane_maintenance", role],
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

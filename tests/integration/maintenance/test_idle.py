"""Collections that nobody uses leave the index's memory; those in use never do."""

import time
from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest
from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.clients.uses import UseReports
from memplane_core.contracts.jobs import USES_KEY
from memplane_core.domain.collections import CollectionName, Uses
from memplane_core.domain.index import Generation, IndexFilter
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.rows import eventually, index_row, unit_vectors
from memplane_core.testing.valkey import ValkeyServer
from memplane_core.vectors import CollectionNotLoaded, MilvusIndex
from memplane_maintenance.idle import IdleRelease
from memplane_maintenance.settings import WorkerSettings

pytestmark = pytest.mark.anyio

IDLE_S = 600.0


@pytest.fixture
async def cache(valkey: ValkeyServer) -> AsyncGenerator[Redis]:
    client: Redis = Redis.from_url(valkey.url_of(1))
    await client.flushdb()
    yield client
    await client.aclose()


def some_generation() -> Generation:
    return Generation(
        tenant=TenantId(uuid4()), number=1, model="m", dim=8, index_type="HNSW", index_params={}, state="absent"
    )


async def made(index: MemoryIndex, count: int) -> list[CollectionName]:
    """Collections, loaded; their names in order."""
    names: list[CollectionName] = []
    for _ in range(count):
        generation = some_generation()
        await index.ensure(generation.tenant, generation)
        names.append(CollectionName(generation.tenant, generation.number))
    return sorted(names)


async def used(cache: Redis, ages: dict[CollectionName, float]) -> None:
    """Say how many seconds ago each was used."""
    await cache.zadd(USES_KEY, {name.collection: time.time() - age for name, age in ages.items()})


async def test_only_what_is_idle_is_released_and_the_longest_unused_first(cache: Redis) -> None:
    index = MemoryIndex()
    names = await made(index, 4)
    await used(cache, {names[0]: 601, names[1]: 599, names[2]: 9_000, names[3]: 0})
    release = IdleRelease(index, cache, idle_s=IDLE_S)
    assert await release.run() == [names[2], names[0]]
    assert await index.loaded() == [names[1], names[3]]
    assert await release.run() == []


async def test_what_nobody_remembers_is_used_from_now_on(cache: Redis) -> None:
    index = MemoryIndex()
    [name] = await made(index, 1)
    release = IdleRelease(index, cache, idle_s=IDLE_S)
    assert await release.run() == []
    used_at = await cache.zscore(USES_KEY, name.collection)
    assert used_at == pytest.approx(time.time(), abs=30)
    await used(cache, {name: 601})
    assert await release.run() == [name]


async def test_uses_reported_by_any_process_keep_a_collection_loaded(cache: Redis) -> None:
    index = MemoryIndex()
    names = await made(index, 2)
    await used(cache, dict.fromkeys(names, 9_000))
    here, there = Uses(), Uses()
    here.note(names[0].collection)
    await UseReports(here, cache).report()
    there.put_back({names[0].collection: time.time() - 5_000})  # an older use never hides a newer one
    await UseReports(there, cache).report()
    assert await IdleRelease(index, cache, idle_s=IDLE_S).run() == [names[1]]
    assert here.take() == {}


async def test_uses_are_reported_at_the_end_and_what_could_not_be_told_is_told_later(cache: Redis) -> None:
    uses = Uses()
    nowhere: Redis = Redis(port=reserved_port())
    uses.note("mp_a")
    await UseReports(uses, nowhere).report()
    await nowhere.aclose()
    uses.note("mp_b")
    async with UseReports(uses, cache).running():
        pass
    assert {name for name, _ in await cache.zrange(USES_KEY, 0, -1, withscores=True)} == {b"mp_a", b"mp_b"}


async def test_nothing_is_released_while_nobody_knows_what_is_used(cache: Redis) -> None:
    index = MemoryIndex()
    names = await made(index, 1)
    nowhere: Redis = Redis(port=reserved_port())
    with pytest.raises(RedisError):
        await IdleRelease(index, nowhere, idle_s=IDLE_S).run()
    await nowhere.aclose()
    assert await index.loaded() == names


async def test_zero_keeps_everything_loaded(cache: Redis) -> None:
    index = MemoryIndex()
    names = await made(index, 1)
    await used(cache, {names[0]: 10**6})
    assert await IdleRelease(index, cache, idle_s=0).run() == []
    assert await index.loaded() == names
    with pytest.raises(ValidationError, match="0 or at least 300"):
        WorkerSettings(idle_release_s=60)


async def test_thirty_idle_tenants_of_milvus_lite_leave_its_memory_and_come_back_when_used(cache: Redis) -> None:
    with MilvusLite() as lite:
        index = MilvusIndex(MilvusSettings(uri=lite.uri))
        generations = sorted((some_generation() for _ in range(30)), key=lambda it: it.tenant)
        vectors = unit_vectors(20, 8)
        for generation in generations:
            await index.ensure(generation.tenant, generation)
            rows = [index_row(n, vectors[n], user_id=generation.tenant.hex) for n in range(20)]
            await index.upsert(generation.tenant, generation, rows)
        names = [CollectionName(generation.tenant, 1) for generation in generations]
        assert await index.loaded() == names
        await UseReports(index.uses, cache).report()
        await used(cache, dict.fromkeys(names[:25], 9_000))

        assert sorted(await IdleRelease(index, cache, idle_s=IDLE_S).run()) == names[:25]
        assert await index.loaded() == names[25:]

        async def search(generation: Generation) -> int:
            own = IndexFilter(alive_at=0, user_id=(generation.tenant.hex,))
            try:
                return len(await index.search(generation.tenant, generation, vectors[0], limit=100, where=own))
            except CollectionNotLoaded:
                return -1

        assert [await search(generation) for generation in generations] == [-1] * 25 + [20] * 5
        for generation in generations:
            assert await eventually(lambda it=generation: search(it), lambda count: count >= 0) == 20
        assert await index.loaded() == names
        await index.close()

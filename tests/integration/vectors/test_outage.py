"""The server goes away and comes back: calls fail in bounded time meanwhile, and nothing acknowledged is lost."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar
from uuid import UUID

import pytest
from pymilvus import MilvusClient

from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import Generation, IndexFilter, IndexRow
from memplane_core.settings import MilvusSettings
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.rows import eventually, index_row, unit_vectors
from memplane_core.vectors import CollectionNotLoaded, MilvusIndex

pytestmark = pytest.mark.anyio

T = TypeVar("T")

ANY = IndexFilter(alive_at=0)
TIMEOUT_S = 1.0


@pytest.fixture(params=["lite", "server"])
def doomed(request: pytest.FixtureRequest) -> Generator[MilvusLite | MilvusServer]:
    """A server of the test's own, which it may kill."""
    with MilvusLite() if request.param == "lite" else MilvusServer() as server:
        yield server


def release(milvus: MilvusLite | MilvusServer, generation: Generation) -> None:
    """Unload the collection, as an operator may."""
    operator = MilvusClient(milvus.uri, dedicated=True)
    operator.release_collection(generation.collection)
    operator.close()


async def found(index: MilvusIndex, generation: Generation, row: IndexRow, *, limit: int) -> list[UUID]:
    """What a search finds, nothing where the server still gathers itself."""
    try:
        return await index.search(generation.tenant, generation, row.vector, limit=limit, where=ANY)
    except IndexUnavailable:
        return []


async def in_the_end(call: Callable[[], Awaitable[T]]) -> T:
    """What a call gives once it gets through: on a busy machine a good server may be late too."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return await call()
        except IndexUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def fails_in_time(index: MilvusIndex, generation: Generation) -> None:
    """Each kind of call says that the index is unavailable within its timeout, however often it is asked."""
    tenant, row = generation.tenant, index_row(0, unit_vectors(1, generation.dim)[0])
    for call in (
        index.search(tenant, generation, row.vector, limit=10, where=ANY),
        index.upsert(tenant, generation, [row]),
        index.delete(tenant, generation, [row.key]),
        index.search(tenant, generation, row.vector, limit=10, where=ANY),
        index.ping(),
    ):
        started = time.monotonic()
        with pytest.raises(IndexUnavailable):
            await call
        assert time.monotonic() - started < TIMEOUT_S + 1


async def test_a_killed_server_is_reported_and_comes_back_with_every_acknowledged_row(
    doomed: MilvusLite | MilvusServer, generation: Generation
) -> None:
    index = MilvusIndex(MilvusSettings(uri=doomed.uri, timeout_s=TIMEOUT_S))
    tenant, vectors = generation.tenant, unit_vectors(320, generation.dim)
    rows = [index_row(n, vectors[n]) for n in range(320)]
    await in_the_end(lambda: index.ensure(tenant, generation))
    for start in range(0, 300, 50):
        await in_the_end(lambda start=start: index.upsert(tenant, generation, rows[start : start + 50]))
    await in_the_end(lambda: index.delete(tenant, generation, [row.key for row in rows[:10]]))

    doomed.kill()
    await fails_in_time(index, generation)
    doomed.start()

    async def refusal() -> IndexUnavailable | None:
        try:
            await index.search(tenant, generation, vectors[0], limit=10, where=ANY)
        except IndexUnavailable as error:
            return error

    # The connection is tried again once a second. The first search that gets through starts a load in the background.
    refused = await eventually(refusal, lambda error: error is None or isinstance(error, CollectionNotLoaded))
    assert isinstance(refused, CollectionNotLoaded)
    await in_the_end(lambda: index.upsert(tenant, generation, rows[300:]))
    await in_the_end(lambda: index.ensure(tenant, generation))
    hits = await eventually(lambda: found(index, generation, rows[50], limit=1000), lambda hits: len(hits) >= 290)
    assert set(hits) >= {row.key.memory_id for row in rows[10:300]}
    keys = [row.key for row in rows]
    assert await in_the_end(lambda: index.keys_present(tenant, generation, keys)) == set(keys[10:])
    await index.close()


async def test_a_search_on_a_collection_that_is_not_loaded_gets_it_loaded(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation
) -> None:
    tenant, row = generation.tenant, index_row(1, unit_vectors(1, generation.dim)[0])
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [row])
    release(milvus, generation)
    with pytest.raises(CollectionNotLoaded) as refusal:
        await index.search(tenant, generation, row.vector, limit=1, where=ANY)
    assert refusal.value.retry_after
    hits = await eventually(lambda: found(index, generation, row, limit=1), bool)
    assert hits == [row.key.memory_id]


async def test_reading_what_is_not_loaded_waits_for_the_load(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation
) -> None:
    tenant, row = generation.tenant, index_row(1, unit_vectors(1, generation.dim)[0])
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [row])
    release(milvus, generation)
    assert await index.count(tenant, generation) == 1


async def test_a_server_that_hangs_is_given_up_in_time_and_used_again_when_it_answers(
    milvus: MilvusLite | MilvusServer, generation: Generation
) -> None:
    index = MilvusIndex(MilvusSettings(uri=milvus.uri, timeout_s=TIMEOUT_S))
    assert index.rpc_timeout_s == 2 * TIMEOUT_S
    await in_the_end(lambda: index.ensure(generation.tenant, generation))
    milvus.signal(signal.SIGSTOP)
    try:
        await fails_in_time(index, generation)
    finally:
        milvus.signal(signal.SIGCONT)
    await in_the_end(lambda: index.ensure(generation.tenant, generation))
    await in_the_end(lambda: index.count(generation.tenant, generation))
    await index.close()

"""The index in memory behaves like Milvus where callers can tell, and can be switched off and made stale."""

from uuid import uuid4

import pytest

from memplane_core.domain.collections import CollectionName
from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import Generation, IndexFilter
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.rows import index_row, unit_vectors

pytestmark = pytest.mark.anyio

ANY = IndexFilter(alive_at=0)


@pytest.fixture
def generation() -> Generation:
    return Generation(
        tenant=TenantId(uuid4()), number=1, model="m", dim=4, index_type="HNSW", index_params={}, state="absent"
    )


async def test_nearest_rows_come_first(generation: Generation) -> None:
    index: VectorIndex = MemoryIndex()
    vectors = unit_vectors(30, 4)
    await index.ensure(generation.tenant, generation)
    await index.upsert(generation.tenant, generation, [index_row(n, vectors[n]) for n in range(30)])
    hits = await index.search(generation.tenant, generation, vectors[7], limit=5, where=ANY)
    best = sorted(range(30), key=lambda n: float(vectors[n] @ vectors[7]), reverse=True)
    assert best[0] == 7
    assert [memory.int for memory in hits] == best[:5]


async def test_a_released_collection_fails_one_search_and_is_loaded_then(generation: Generation) -> None:
    index, tenant, row = MemoryIndex(), generation.tenant, index_row(1, unit_vectors(1, 4)[0])
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [row])
    name = CollectionName(tenant, generation.number)
    assert await index.loaded() == await index.collections() == [name]
    await index.release(tenant, generation)
    assert (await index.loaded(), await index.collections()) == ([], [name])
    with pytest.raises(IndexUnavailable):
        await index.search(tenant, generation, row.vector, limit=1, where=ANY)
    assert await index.search(tenant, generation, row.vector, limit=1, where=ANY) == [row.key.memory_id]
    assert await index.loaded() == [name]


async def test_keys_come_in_pages(generation: Generation) -> None:
    index, tenant, vectors = MemoryIndex(), generation.tenant, unit_vectors(5, 4)
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [index_row(n, vectors[n]) for n in range(5)])
    first = await index.keys_after(tenant, generation, limit=3)
    assert [key.memory_id.int for key in first.keys] == [0, 1, 2]
    assert first.until
    second = await index.keys_after(tenant, generation, first.until, limit=3)
    assert ([key.memory_id.int for key in second.keys], second.until) == ([3, 4], None)


async def test_an_absent_collection_cannot_be_searched_and_is_empty(generation: Generation) -> None:
    index, row = MemoryIndex(), index_row(1, unit_vectors(1, 4)[0])
    with pytest.raises(IndexUnavailable):
        await index.search(generation.tenant, generation, row.vector, limit=1, where=ANY)
    with pytest.raises(IndexUnavailable):
        await index.upsert(generation.tenant, generation, [row])
    await index.delete(generation.tenant, generation, [row.key])
    assert await index.count(generation.tenant, generation) == 0


async def test_changes_are_seen_by_searches_later_than_by_reads(generation: Generation) -> None:
    now = 0.0
    index, tenant, row = MemoryIndex(clock=lambda: now), generation.tenant, index_row(1, unit_vectors(1, 4)[0])
    index.visible_after = 0.5
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [row])
    assert await index.keys_present(tenant, generation, [row.key]) == {row.key}
    assert await index.search(tenant, generation, row.vector, limit=1, where=ANY) == []
    now = 0.6
    assert len(await index.search(tenant, generation, row.vector, limit=1, where=ANY)) == 1
    await index.delete(tenant, generation, [row.key])
    assert await index.count(tenant, generation) == 0
    assert len(await index.search(tenant, generation, row.vector, limit=1, where=ANY)) == 1
    now = 1.2
    assert await index.search(tenant, generation, row.vector, limit=1, where=ANY) == []


async def test_a_switched_off_index_refuses_everything_and_forgets_nothing(generation: Generation) -> None:
    index, tenant, row = MemoryIndex(), generation.tenant, index_row(1, unit_vectors(1, 4)[0])
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [row])
    index.down = True
    for call in (
        index.ensure(tenant, generation),
        index.delete(tenant, generation, [row.key]),
        index.search(tenant, generation, row.vector, limit=1, where=ANY),
        index.count(tenant, generation),
        index.drop(tenant, generation),
        index.ping(),
    ):
        with pytest.raises(IndexUnavailable):
            await call
    index.down = False
    assert await index.count(tenant, generation) == 1

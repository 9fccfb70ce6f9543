"""What the index holds as a whole: its collections, which of them are loaded, and each collection's keys."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

import msgspec
import pytest

from memplane_core.domain.collections import CollectionName
from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import Generation, IndexFilter, IndexKey
from memplane_core.domain.tenancy import TenantId
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.rows import eventually, index_row, unit_vectors
from memplane_core.vectors import CollectionNotLoaded, MilvusIndex

pytestmark = pytest.mark.anyio

ANY = IndexFilter(alive_at=0)


async def all_keys(index: MilvusIndex, generation: Generation, *, limit: int) -> list[IndexKey]:
    """Page after page, as a reconciler reads them."""
    keys: list[IndexKey] = []
    after: str | None = ""
    while after is not None:
        page = await index.keys_after(generation.tenant, generation, after, limit=limit)
        assert len(page.keys) <= limit
        keys += page.keys
        after = page.until
    return keys


async def test_all_keys_are_read_once_while_others_write(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation
) -> None:
    tenant, dim = generation.tenant, generation.dim
    count = 3_000
    vectors = unit_vectors(count, dim)
    rows = [index_row(n * 7_919 % 100_003 + 1, vectors[n]) for n in range(count)]  # not in the order of their keys
    await index.ensure(tenant, generation)
    for start in range(0, count, 500):
        await index.upsert(tenant, generation, rows[start : start + 500])
    edited = {n: index_row(rows[n].key.memory_id.int, vectors[n], rev=2) for n in range(0, 400, 4)}

    @asynccontextmanager
    async def edits() -> AsyncGenerator[None]:
        """Puts rows in the place of others, and stores some as they are."""

        async def write() -> None:
            for n, row in edited.items():
                await index.upsert(tenant, generation, [row, rows[n + 1]])
                await index.delete(tenant, generation, [rows[n].key])

        writing = asyncio.create_task(write())
        yield
        await writing

    async with edits():
        seen = await all_keys(index, generation, limit=600)
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen, key=str)
    never_changed = {row.key for n, row in enumerate(rows) if n not in edited}
    assert set(seen) >= never_changed
    assert set(seen) <= {row.key for row in rows} | {row.key for row in edited.values()}
    now = never_changed | {row.key for row in edited.values()}
    assert set(await all_keys(index, generation, limit=2_000)) == now
    assert set(await all_keys(index, generation, limit=16_383)) == now


async def test_no_collection_has_no_keys(index: MilvusIndex, generation: Generation) -> None:
    page = await index.keys_after(generation.tenant, generation, limit=10)
    assert (page.keys, page.until) == ([], None)
    with pytest.raises(ValueError, match="limit"):
        await index.keys_after(generation.tenant, generation, limit=16_384)


async def test_collections_are_listed_released_and_loaded_by_their_next_use(
    index: MilvusIndex, generation: Generation
) -> None:
    tenant, row = generation.tenant, index_row(1, unit_vectors(1, generation.dim)[0])
    next_one = msgspec.structs.replace(generation, number=2)
    mine = [CollectionName(tenant, 1), CollectionName(tenant, 2)]
    for each in (generation, next_one):
        await index.ensure(tenant, each)
        await index.upsert(tenant, each, [row])

    async def loaded() -> list[CollectionName]:
        return [name for name in await index.loaded() if name.tenant == tenant]

    assert [name for name in await index.collections() if name.tenant == tenant] == mine
    assert await loaded() == mine
    assert index.uses.take().keys() >= {name.collection for name in mine}

    await index.release(tenant, generation)
    await index.release(tenant, generation)  # twice is once
    assert await loaded() == mine[1:]
    assert [name for name in await index.collections() if name.tenant == tenant] == mine
    with pytest.raises(CollectionNotLoaded):
        await index.search(tenant, generation, row.vector, limit=1, where=ANY)
    assert index.uses.take().keys() == {generation.collection}

    async def found() -> int:
        try:
            return len(await index.search(tenant, generation, row.vector, limit=1, where=ANY))
        except IndexUnavailable:
            return 0

    assert await eventually(found, bool) == 1
    assert await loaded() == mine

    await index.release(tenant, mine[0])
    await index.ensure(tenant, generation)  # as before each write
    assert await loaded() == mine

    await index.release(tenant, generation)
    assert [key async for key in _keys(index, mine[0])] == [row.key]  # reading loads it too
    await index.drop(tenant, mine[0])
    assert mine[0] not in await index.collections()
    await index.release(tenant, mine[0])  # absent
    with pytest.raises(ValueError, match="belongs to tenant"):
        await index.release(TenantId(uuid4()), generation)
    await index.drop(tenant, next_one)


async def _keys(index: MilvusIndex, name: CollectionName) -> AsyncGenerator[IndexKey]:
    for key in (await index.keys_after(name.tenant, name, limit=10)).keys:
        yield key


@pytest.mark.parametrize(
    "text", ["mp_", "mp_0_g1", f"mp_{'0' * 32}_g0", f"mp_{'A' * 32}_g1", f"xmp_{'0' * 32}_g1", f"mp_{'0' * 32}_g1_x"]
)
async def test_other_peoples_collections_are_not_ours(text: str) -> None:
    assert CollectionName.parse(text) is None
    name = CollectionName(TenantId(uuid4()), 12)
    assert CollectionName.parse(name.collection) == name

"""pymilvus puts another channel in the place of one whose server it found gone, whoever uses the old one."""

import asyncio
from typing import Any, cast

import pytest

from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import Generation, IndexFilter
from memplane_core.testing.rows import eventually, index_row, unit_vectors
from memplane_core.vectors import MilvusIndex
from memplane_core.vectors.faults import translated

pytestmark = pytest.mark.anyio

ANY = IndexFilter(alive_at=0)


async def handler_of(index: MilvusIndex) -> Any:
    """Of the connection that `index` uses."""
    client = cast("Any", await index._clients.connection())._client  # pyright: ignore[reportPrivateUsage]
    return await client._get_connection()


async def test_searches_go_on_through_the_channel_that_took_the_place_of_another(
    index: MilvusIndex, generation: Generation
) -> None:
    row = index_row(0, unit_vectors(1, generation.dim)[0])
    await index.ensure(generation.tenant, generation)
    await index.upsert(generation.tenant, generation, [row])

    async def found() -> bool:
        return await index.search(generation.tenant, generation, row.vector, limit=1, where=ANY) == [row.key.memory_id]

    assert await eventually(found, bool)
    await (await handler_of(index)).reconnect()
    assert await found()


async def test_a_search_through_a_channel_that_is_closed_is_told_that_the_index_is_away(
    index: MilvusIndex, generation: Generation
) -> None:
    row = index_row(0, unit_vectors(1, generation.dim)[0])
    await index.ensure(generation.tenant, generation)
    await index.upsert(generation.tenant, generation, [row])
    await (await handler_of(index))._async_channel.close()
    with pytest.raises(IndexUnavailable, match="being replaced"):
        await index.search(generation.tenant, generation, row.vector, limit=1, where=ANY)


async def test_a_call_that_is_cancelled_with_its_channel_cancels_nobody_else() -> None:
    call = asyncio.get_running_loop().create_future()
    call.cancel()
    with pytest.raises(IndexUnavailable, match="was replaced"), translated("searching"):
        await call


async def test_one_who_is_cancelled_during_a_call_is_cancelled() -> None:
    async def calling() -> None:
        with translated("searching"):
            await asyncio.Event().wait()

    task = asyncio.create_task(calling())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

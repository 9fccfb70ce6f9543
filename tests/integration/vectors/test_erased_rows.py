"""Rows are found by whose they are, expired ones too, and their room is given back."""

from uuid import UUID

import msgspec
import pytest

from memplane_core.domain.index import Generation, IndexFilter
from memplane_core.testing.rows import index_row, unit_vectors
from memplane_core.vectors import MilvusIndex

pytestmark = pytest.mark.anyio


async def test_what_is_somebodys_is_found_removed_and_compacted(index: MilvusIndex, generation: Generation) -> None:
    tenant = generation.tenant
    vectors = unit_vectors(60, generation.dim)
    owner = ('a "quoted" 名', "b")
    rows = [index_row(n, vectors[n], user_id=owner[n % 2], agent_id=str(n % 3), expires_at=n) for n in range(60)]
    always = -(2**62)
    theirs = IndexFilter(alive_at=always, user_id=(owner[0],))
    assert await index.keys_of(tenant, generation, theirs, limit=100) == []
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, rows)

    both = msgspec.structs.replace(theirs, agent_id=("1",))
    found = await index.keys_of(tenant, generation, both, limit=100)
    assert {key.memory_id for key in found} == {UUID(int=n) for n in range(60) if n % 2 == 0 and n % 3 == 1}
    assert len(await index.keys_of(tenant, generation, theirs, limit=7)) == 7

    while keys := await index.keys_of(tenant, generation, theirs, limit=20):
        await index.delete(tenant, generation, keys)
    assert await index.compact(tenant, generation)
    assert await index.count(tenant, generation) == 30

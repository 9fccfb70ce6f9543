"""Rows go in and come out as they are, on Lite and on a server: filters are exact whatever the strings are."""

import random
from itertools import pairwise
from uuid import UUID

import msgspec
import pytest

from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import Generation, IndexFilter, IndexKey, IndexRow
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.rows import eventually, index_row, unit_vectors
from memplane_core.vectors import CollectionAbsent, MilvusIndex

pytestmark = pytest.mark.anyio

TORTURE = [
    "",
    " ",
    "plain",
    "Plain",
    "a'b",
    'a"b',
    "a\\b",
    "a\\",
    "\\",
    '\\"',
    "a\nb",
    "a\\nb",
    "a\rb",
    "a\tb",
    "tab\\tb",
    '") or true or ("',
    "' or 1 == 1 or '",
    '"] or id != "',
    "user_id",
    "{placeholder}",
    "$0",
    "%s%d",
    "_",
    "a%",
    "-./@:",
    "user-1@example.com/x:y",
    "naïve",
    "nai\u0308ve",
    "漢" * 85 + "a",
    "漢" * 85 + "b",
    "😀🏽",
    "\u2028\u00a0\ufeff",
    "\x01\x7f",
    "null",
    "true",
    "0",
    "x" * 256,
]


async def found(index: MilvusIndex, generation: Generation, where: IndexFilter, *, limit: int = 1000) -> set[UUID]:
    vector = unit_vectors(1, generation.dim, seed=99)[0]
    return set(await index.search(generation.tenant, generation, vector, limit=limit, where=where))


async def fill(index: MilvusIndex, generation: Generation, rows: list[IndexRow]) -> None:
    """Store the rows in a new collection; returns when a search sees them all."""
    await index.ensure(generation.tenant, generation)
    await index.upsert(generation.tenant, generation, rows)
    everything = IndexFilter(alive_at=-(2**62))
    ids = {row.key.memory_id for row in rows}
    assert await eventually(lambda: found(index, generation, everything), lambda seen: seen == ids) == ids


async def test_each_odd_string_selects_exactly_its_own_row(index: MilvusIndex, generation: Generation) -> None:
    vectors = unit_vectors(len(TORTURE), generation.dim)
    rows = [
        index_row(n, vectors[n], user_id=text, agent_id=TORTURE[-n], session_id=text, memory_type=text)
        for n, text in enumerate(TORTURE)
    ]
    await fill(index, generation, rows)
    for n, text in enumerate(TORTURE):
        mine = {rows[n].key.memory_id}
        assert await found(index, generation, IndexFilter(alive_at=0, user_id=(text,))) == mine, text
        assert await found(index, generation, IndexFilter(alive_at=0, agent_id=(TORTURE[-n],))) == mine, text
        several = IndexFilter(alive_at=0, session_id=(text, "nobody"), memory_type=(text, "nothing"))
        assert await found(index, generation, several) == mine, text
    everyone = IndexFilter(alive_at=0, user_id=tuple(TORTURE))
    assert await found(index, generation, everyone) == {row.key.memory_id for row in rows}
    assert await found(index, generation, IndexFilter(alive_at=0, user_id=())) == set()


async def test_a_replaced_row_is_found_by_its_new_values_alone_and_a_deleted_one_never(
    index: MilvusIndex, generation: Generation
) -> None:
    tenant, vectors = generation.tenant, unit_vectors(4, generation.dim)
    rows = [index_row(n, vectors[n], user_id="before", session_id="kept out") for n in range(3)]
    await fill(index, generation, rows)
    changed = index_row(0, vectors[3], user_id="after")
    await index.upsert(tenant, generation, [changed])
    await index.delete(tenant, generation, [rows[1].key, IndexKey(changed.key.memory_id, 7, 7)])

    after = IndexFilter(alive_at=0, user_id=("after",))
    assert await eventually(lambda: found(index, generation, after), bool) == {changed.key.memory_id}
    before = IndexFilter(alive_at=0, user_id=("before",))
    assert await eventually(lambda: found(index, generation, before), lambda it: len(it) == 1) == {
        rows[2].key.memory_id
    }
    assert await found(index, generation, IndexFilter(alive_at=0, session_id=("kept out",))) == {rows[2].key.memory_id}
    best = await index.search(tenant, generation, vectors[3], limit=1, where=after)
    assert best == [changed.key.memory_id]
    assert await index.count(tenant, generation) == 2
    keys = [row.key for row in rows]
    assert await index.keys_present(tenant, generation, keys) == {keys[0], keys[2]}


async def test_a_memory_is_found_once_for_each_of_its_chunks(index: MilvusIndex, generation: Generation) -> None:
    vectors = unit_vectors(3, generation.dim)
    short, long = index_row(1, vectors[0]), index_row(2, vectors[1])
    other = msgspec.structs.replace(long, key=IndexKey(long.key.memory_id, 1, 1), vector=vectors[2])
    await fill(index, generation, [short, long, other])

    async def search() -> list[UUID]:
        return await index.search(generation.tenant, generation, vectors[2], limit=5, where=IndexFilter(alive_at=0))

    hits = await eventually(search, lambda hits: len(hits) == 3)
    assert sorted(hits) == [UUID(int=1), UUID(int=2), UUID(int=2)]
    assert hits[0] == UUID(int=2)


async def test_many_vectors_are_searched_for_at_once_as_each_by_itself(
    index: MilvusIndex, generation: Generation
) -> None:
    vectors = unit_vectors(40, generation.dim)
    await fill(index, generation, [index_row(n, vectors[n], user_id="u" if n else "v") for n in range(40)])
    tenant, where = generation.tenant, IndexFilter(alive_at=0, user_id=("u",))
    together = await index.search_many(tenant, generation, list(vectors[:20]), limit=5, where=where)
    alone = [await index.search(tenant, generation, vector, limit=5, where=where) for vector in vectors[:20]]
    assert together == alone
    assert [found[0].int for found in together[1:]] == list(range(1, 20))
    nobody = IndexFilter(alive_at=0, user_id=("nobody",))
    assert await index.search_many(tenant, generation, list(vectors[:2]), limit=5, where=nobody) == [[], []]
    assert await index.search_many(tenant, generation, [], limit=5, where=where) == []


async def test_nothing_is_wrong_about_a_collection_that_is_absent(index: MilvusIndex, generation: Generation) -> None:
    tenant, row = generation.tenant, index_row(1, unit_vectors(1, generation.dim)[0])
    with pytest.raises(CollectionAbsent):
        await index.search(tenant, generation, row.vector, limit=10, where=IndexFilter(alive_at=0))
    with pytest.raises(IndexUnavailable):
        await index.upsert(tenant, generation, [row])
    await index.delete(tenant, generation, [row.key])
    await index.drop(tenant, generation)
    assert await index.count(tenant, generation) == 0
    assert await index.keys_present(tenant, generation, [row.key]) == frozenset()


async def test_random_rows_and_filters_agree_with_the_index_in_memory(
    index: MilvusIndex, generation: Generation
) -> None:
    tenant, dice = generation.tenant, random.Random(7)
    words = ["", "a", "b", 'quote"d', "back\\slash", "漢字", "a b"]
    vectors = unit_vectors(260, generation.dim, seed=7)
    rows = [
        index_row(
            n,
            vectors[n],
            user_id=dice.choice(words),
            agent_id=dice.choice(words),
            session_id=dice.choice(words),
            memory_type=dice.choice(["experience", "insight"]),
            occurred_at=dice.randrange(-50, 50),
            expires_at=dice.choice([2**53 - 1, dice.randrange(-50, 50)]),
        )
        for n in range(200)
    ]
    exact = MemoryIndex()
    await exact.ensure(tenant, generation)
    await exact.upsert(tenant, generation, rows)
    await fill(index, generation, rows)

    def some() -> tuple[str, ...] | None:
        return dice.choice([None, None, (dice.choice(words),), tuple(dice.sample(words, 3))])

    sizes: set[int] = set()
    for n in range(60):
        where = IndexFilter(
            alive_at=dice.randrange(-60, 60),
            user_id=some(),
            agent_id=some(),
            session_id=some(),
            memory_type=dice.choice([None, ("insight",)]),
            occurred_from=dice.choice([None, dice.randrange(-50, 50)]),
            occurred_to=dice.choice([None, dice.randrange(-50, 50)]),
        )
        expected = await exact.search(tenant, generation, vectors[200 + n], limit=500, where=where)
        actual = await index.search(tenant, generation, vectors[200 + n], limit=500, where=where)
        assert set(actual) == set(expected), where
        cosines = [float(vectors[memory.int] @ vectors[200 + n]) for memory in actual]
        assert all(better > worse - 1e-5 for better, worse in pairwise(cosines))
        sizes.add(len(expected))
    assert len(sizes) > 10  # the filters were neither all empty nor all trivial

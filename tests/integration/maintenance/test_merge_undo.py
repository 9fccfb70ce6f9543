"""Taking merges back: to the byte, in Postgres and in the index, in any order, and around what has happened since."""

import asyncio
from uuid import UUID

import pytest
from tests.integration.maintenance.merging import Merging, copies

from memplane_core.domain.errors import DuplicateMemory
from memplane_core.storage import memories
from memplane_core.storage.jobs import create_job
from memplane_core.storage.memory_writes import PlaceTakenError
from memplane_core.storage.session import is_contention
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk

pytestmark = pytest.mark.anyio


@pytest.fixture
def merging(desk: MemoryDesk, embedder: HashEmbedder) -> Merging:
    return Merging(desk, MemoryIndex(), embedder)


async def write_varied(merging: Merging, count: int) -> list[UUID]:
    """Near-copies that differ in all that a merge makes one of."""
    ids: list[UUID] = []
    for n, text in enumerate(copies(count)):
        ids += await merging.write(
            text, user_id="u", scene=[f"s{n % 3}", f"t{n % 5}"], importance=n / count, priority=n % 5 + 1
        )
    await merging.sql(
        "UPDATE memory_usage SET access_count = abs(hashtext(memory_id::text)) % 100, helpful = priority,"
        " last_accessed_at = last_accessed_at - make_interval(mins => abs(hashtext(memory_id::text)) % 1000)"
    )
    return ids


async def taken(merging: Merging) -> list[str]:
    """Whom survivors remember."""
    return await merging.sql(
        "SELECT coalesce(array_agg(its ->> 'id' ORDER BY its ->> 'id'), '{}')"
        " FROM memory, jsonb_array_elements(merges -> 'taken') AS its"
    )


class TestEverythingComesBack:
    async def test_to_the_byte_and_in_the_index(self, merging: Merging) -> None:
        ids = await write_varied(merging, 12)
        await merging.settle()
        before, held = await merging.everything(), await merging.held()
        await merging.run()
        await merging.settle()
        [survivor] = {its.id for its in (await merging.memories(ids)).values() if its.state == "active"}
        assert {key.memory_id for key in await merging.held()} == {survivor}
        gone = [memory_id for memory_id in ids if memory_id != survivor]
        assert await merging.restore(*gone) == sorted(gone)
        await merging.settle()
        assert await merging.everything() == before
        after = await merging.held()
        assert {(key.memory_id, key.n) for key in after} == {(key.memory_id, key.n) for key in held}
        assert {key.rev for key in after if key.memory_id != survivor} == {2}  # no key is used twice

    async def test_one_after_the_other_from_the_middle(self, merging: Merging) -> None:
        ids = await write_varied(merging, 7)
        await merging.settle()
        before = await merging.everything()
        await merging.merge(ids[3], ids[0], ids[5])
        await merging.merge(ids[3], ids[1], ids[2], ids[6])
        for memory_id in (ids[2], ids[0], ids[6], ids[5], ids[1]):
            assert await merging.restore(memory_id) == [memory_id]
        assert await merging.everything() == before

    async def test_through_chains_of_merges(self, merging: Merging) -> None:
        """Each way to take them back ends the same, also where one comes back from below one that is merged itself."""
        ids = await write_varied(merging, 6)
        await merging.settle()
        before = await merging.everything()
        for way in ([3, 2, 1, 0], [0, 1, 2, 3], [1, 0, 3, 2], [2, 0, 1, 3]):
            await merging.merge(ids[1], ids[0])
            await merging.merge(ids[2], ids[1])
            await merging.merge(ids[4], ids[2], ids[3])
            for n in way:
                assert await merging.restore(ids[n]) == [ids[n]]
                total = await merging.sql(
                    "SELECT sum(access_count) FROM memory_usage u JOIN memory m ON m.id = u.memory_id"
                    " WHERE m.state = 'active'"
                )
                assert total == sum(int(row.split('"access_count": ')[1].split(",")[0]) for row in before["usage"])
            assert await merging.everything() == before, way


class TestWhatHasHappenedSince:
    async def test_is_kept(self, merging: Merging) -> None:
        first = (await merging.write("Ana likes tea", scene=["a"], priority=5, importance=0.2))[0]
        second = (await merging.write("ana likes tea!", scene=["b"], importance=0.8))[0]
        await merging.run()
        await merging.desk.edit(first, scene=["z"])
        await merging.sql("UPDATE memory_usage SET access_count = access_count + 4, priority = 1")
        await merging.restore(second)
        survivor = (await merging.memories([first]))[first]
        assert (survivor.scene, survivor.access_count, survivor.priority) == (["z"], 4, 1)
        assert survivor.importance == 0.2  # which nobody has touched

    async def test_a_survivor_that_is_gone_takes_nobody_with_it(self, merging: Merging) -> None:
        ids = await write_varied(merging, 3)
        before = await merging.memories(ids)
        await merging.merge(ids[0], ids[1], ids[2])
        await merging.desk.remove(ids[0])
        await merging.restore(ids[1], ids[2])
        for memory_id, memory in (await merging.memories(ids[1:])).items():
            assert (memory.state, memory.scene) == ("active", before[memory_id].scene)

    async def test_one_that_was_purged_has_left_what_it_brought(self, merging: Merging) -> None:
        ids = await write_varied(merging, 3)
        await merging.merge(ids[0], ids[1], ids[2])
        merged = (await merging.memories([ids[0]]))[ids[0]]
        await merging.desk.remove(ids[1])
        assert (await merging.memories([ids[0]]))[ids[0]] == merged
        assert await taken(merging) == [str(ids[2])]
        await merging.restore(ids[2])
        survivor = (await merging.memories([ids[0]]))[ids[0]]
        assert set(survivor.scene) == {"s0", "t0", "s1", "t1"} < set(merged.scene)
        assert await merging.sql("SELECT count(*) FROM memory WHERE merges IS NOT NULL") == 0

    async def test_a_survivor_remembers_none_that_were_purged(self, merging: Merging) -> None:
        ids = await write_varied(merging, 6)
        await merging.merge(ids[0], *ids[1:3])
        await merging.merge(ids[3], ids[0], ids[4])
        before = await merging.everything()
        await merging.sql("UPDATE memory SET purge_at = '2026-01-01' WHERE state = 'merged' AND id <> $1", ids[0])
        async with merging.desk.database.tenant(merging.desk.tenant) as connection:
            await create_job(merging.desk.tenant, connection, kind="purge", params={}, dry_run=False, started_by="k")
            job_id = await connection.fetchval("SELECT id FROM job WHERE kind = 'purge'")
        assert (await merging.finish(job_id)).result == {"deleted": 3}
        assert await taken(merging) == [str(ids[0])]
        after = await merging.everything()
        assert [row for row in after["usage"] if row not in before["usage"]] == []
        assert (await merging.memories([ids[3]]))[ids[3]].version == 2  # by the merge alone

    async def test_one_that_somebody_else_is_changing_is_not_waited_for(self, merging: Merging) -> None:
        ids = await write_varied(merging, 4)
        await merging.merge(ids[0], *ids[1:])
        async with merging.desk.database.tenant(merging.desk.tenant) as connection:
            await connection.execute("SELECT FROM memory WHERE id = $1 FOR UPDATE", ids[0])
            await merging.desk.remove(ids[1])
        assert len(await taken(merging)) == 3
        await merging.desk.remove(ids[2])
        assert await taken(merging) == [str(ids[3])]

    async def test_a_twin_stands_in_the_way_of_all(self, merging: Merging) -> None:
        first, second, third = await merging.write("one", "two", "three")
        await merging.sql("UPDATE memory SET dedup_key = $2 WHERE id = $1", second, b"k" * 32)
        await merging.merge(first, second, third)
        await merging.write("two", dedup_key=b"k" * 32)
        before = await merging.everything()
        with pytest.raises(DuplicateMemory):
            await merging.restore(second, third)
        assert await merging.everything() == before


class TestAtTheSameTime:
    async def test_two_restores_of_one_cluster_both_give_back(self, merging: Merging) -> None:
        ids = await write_varied(merging, 6)
        before = await merging.everything()
        await merging.merge(ids[0], *ids[1:])
        results = await asyncio.gather(*(merging.restore(memory_id) for memory_id in ids[1:]), return_exceptions=True)
        for memory_id, result in zip(ids[1:], results, strict=True):
            if isinstance(result, Exception):
                assert is_contention(result) or isinstance(result, PlaceTakenError)
                await merging.restore(memory_id)
        assert await merging.everything() == before

    async def test_restoring_twice_gives_back_once(self, merging: Merging) -> None:
        ids = await write_varied(merging, 3)
        before = await merging.everything()
        await merging.merge(ids[0], ids[1], ids[2])
        await merging.restore(ids[1])
        assert await merging.restore(ids[1]) == []
        await merging.restore(ids[2])
        assert await merging.everything() == before

    async def test_a_failure_midway_leaves_all_as_it_was(self, merging: Merging) -> None:
        ids = await write_varied(merging, 4)
        before = await merging.everything()

        async def merge_and_fail() -> None:
            async with merging.desk.database.tenant(merging.desk.tenant) as connection:
                await memories.read(merging.desk.tenant, connection, ids)
                await merging.merge_in(connection, ids[0], *ids[1:])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await merge_and_fail()
        assert await merging.everything() == before

"""Merges whose worker dies, sleeps, or is not alone; and the real index."""

from collections.abc import AsyncGenerator, Generator
from uuid import UUID

import pytest
from tests.integration.maintenance.merging import SENTENCE, Merging, copies

from memplane_core.settings import MilvusSettings
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.faults import Died, MortalDatabase, Mortality, SleepyDatabase
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.vectors import MilvusIndex
from memplane_maintenance.jobs import merge as merge_job
from memplane_maintenance.jobs import merge_planning

pytestmark = pytest.mark.anyio


@pytest.fixture
def index() -> MemoryIndex:
    return MemoryIndex()


@pytest.fixture
def merging(desk: MemoryDesk, index: MemoryIndex, embedder: HashEmbedder) -> Merging:
    return Merging(desk, index, embedder)


async def write_clusters(merging: Merging) -> list[UUID]:
    """Three clusters of four, and one memory by itself."""
    ids: list[UUID] = []
    for n in range(3):
        ids += await merging.write(*copies(4, f"{n} apples. {SENTENCE}"), scene=[f"s{n}"])
    ids += await merging.write("nothing like it")
    await merging.sql("UPDATE memory_usage SET access_count = 1")
    await merging.settle()
    return ids


async def are_merged_once(merging: Merging, ids: list[UUID]) -> bool:
    """Whether each cluster is one, and every use is counted once."""
    groups = await merging.groups(ids)
    found = await merging.memories(ids)
    uses = sorted(memory.access_count for memory in found.values() if memory.state == "active")
    return sorted(map(len, groups)) == [1, 4, 4, 4] and uses == [1, 4, 4, 4]


async def plan(merging: Merging, monkeypatch: pytest.MonkeyPatch) -> UUID:
    """A run that has planned everything and merged nothing."""
    monkeypatch.setattr(merge_job, "_STEP_S", 0.0)
    job_id = await merging.ask()
    runner = merging.runner_over(merging.desk.database)
    runner._slice_s = 0.0  # pyright: ignore[reportPrivateUsage] - one step a slice
    while (await merging.job(job_id)).checkpoint.get("phase") != "apply":
        await merging.slice(job_id, runner)
    return job_id


class TestAWorkerThatDies:
    async def test_at_any_moment_is_followed_by_one_that_ends_the_run(self, merging: Merging) -> None:
        """Dies at every transaction's begin, commit and end in turn; what is done is done once."""
        dies_at, died = 0, True
        ids = await write_clusters(merging)
        before = await merging.everything()
        while died:
            dies_at += 5
            job_id, died = await merging.ask(full=True), False
            try:
                mortal = MortalDatabase(merging.desk.database, Mortality(dies_at))
                await merging.slice(job_id, merging.runner_over(mortal))
            except Died:
                died = True
            job = await merging.job(job_id) if not died else await merging.finish(job_id)
            assert (job.state, job.result["clusters"], job.result["merged"]) == ("done", 3, 9), dies_at
            assert await are_merged_once(merging, ids), dies_at
            assert await merging.sql("SELECT count(*) FROM merge_plan") == 0
            gone = [its.id for its in (await merging.memories(ids)).values() if its.state == "merged"]
            await merging.restore(*gone)
            assert await merging.everything() == before, dies_at
            await merging.settle()
        assert dies_at > 20

    async def test_or_sleeps_while_another_ends_it_changes_nothing_more(self, merging: Merging) -> None:
        ids = await write_clusters(merging)
        job_id = await merging.ask()

        async def meanwhile() -> None:
            assert (await merging.finish(job_id)).state == "done"

        sleepy = SleepyDatabase(merging.desk.database, meanwhile, before=9)
        await merging.slice(job_id, merging.runner_over(sleepy))
        assert await are_merged_once(merging, ids)
        assert (await merging.job(job_id)).result["merged"] == 9

    async def test_a_cancelled_run_keeps_what_is_merged_and_drops_its_plan(
        self, merging: Merging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = await write_clusters(merging)
        job_id = await plan(merging, monkeypatch)
        assert await merging.sql("SELECT count(*) FROM merge_plan") == 12
        await merging.sql("UPDATE job SET cancel_asked = true")
        assert (await merging.slice(job_id)).ended == "cancelled"
        assert len(await merging.groups(ids)) == 13
        assert await merging.sql("SELECT count(*) FROM merge_plan") == 0
        assert (await merging.run())["merged"] == 9


class TestWhatChangesBetweenPlanAndMerge:
    async def test_stays_by_itself_where_it_holds_for_another_time_now(
        self, merging: Merging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = await write_clusters(merging)
        job_id = await plan(merging, monkeypatch)
        survivors = await merging.sql("SELECT array_agg(survivor_id) FROM merge_plan WHERE memory_id = $1", ids[4])
        for over in (ids[0], *survivors):
            await merging.sql("UPDATE memory SET valid_to = statement_timestamp() WHERE id = $1", over)
        assert (await merging.finish(job_id)).result["merged"] == 2 + 0 + 3
        groups = await merging.groups(ids)
        assert {ids[0]} in groups
        assert set(ids[1:4]) in groups
        assert all({its} in groups for its in ids[4:8])

    async def test_stays_by_itself_where_it_is_another_text_now(
        self, merging: Merging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = await write_clusters(merging)
        job_id = await plan(merging, monkeypatch)
        await merging.desk.edit(ids[0], content="pears are no apples")
        await merging.desk.remove(ids[5])
        await merging.sql("UPDATE memory SET pinned = true WHERE id = $1", ids[9])
        job = await merging.finish(job_id)
        groups = await merging.groups([its for its in ids if its != ids[5]])
        assert {ids[0]} in groups
        assert set(ids[1:4]) in groups
        assert {ids[4], ids[6], ids[7]} in groups
        found = await merging.memories([ids[9]])
        assert found[ids[9]].state == "active"
        assert job.result["merged"] in (6, 7)  # whichever of the last cluster was to stay

    async def test_large_clusters_are_merged_in_portions(
        self, merging: Merging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(merge_job, "_AT_A_TIME", 3)
        ids = await merging.write(*copies(10))
        dry = await merging.run(dry_run=True)
        assert await merging.run() == dry
        assert await merging.groups(ids) == [set(ids)]

    async def test_a_survivor_that_stands_for_too_many_is_left_alone(
        self, merging: Merging, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(merge_planning, "_STOOD_FOR", 4)
        ids = await merging.write(*copies(5))
        await merging.run()
        ids += await merging.write(*copies(7)[5:])
        assert (await merging.run())["merged"] == 1
        assert sorted(map(len, await merging.groups(ids))) == [2, 5]


class TestTwoAtOnce:
    async def test_a_job_and_a_request_merge_the_same(self, merging: Merging, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever comes second finds less to do; no use is counted twice."""
        ids = await write_clusters(merging)
        job_id = await plan(merging, monkeypatch)
        await merging.merge(ids[0], ids[1], ids[2])
        await merging.merge(ids[6], ids[4], ids[5], ids[7])
        await merging.finish(job_id)
        await merging.run(full=True)
        assert await are_merged_once(merging, ids)


class TestTheIndex:
    async def test_is_not_needed_by_few_and_waited_for_by_many(
        self, merging: Merging, index: MemoryIndex, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await write_clusters(merging)
        monkeypatch.setattr(merge_planning, "SCAN_LIMIT", 12)
        index.down = True
        job_id = await merging.ask()
        await merging.slice(job_id)
        held = await merging.job(job_id)
        assert held.state == "running"
        assert "index" in str(held.error)
        index.down = False
        assert (await merging.finish(job_id)).result["merged"] == 9

    async def test_of_milvus_names_a_thousand_copies_and_loses_them(
        self, desk: MemoryDesk, lite: MilvusIndex, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(merge_planning, "_WORTH_A_SEARCH", 0)
        monkeypatch.setattr(merge_planning, "_LONGEST_REST_S", 0.0)
        merging = Merging(desk, lite, HashEmbedder(window=200))
        ids = await merging.write(*copies(1_000), user_id="u")
        others = await merging.write(*(f"note {n} about something else" for n in range(50)), user_id="u")
        result = await merging.run()
        assert (result["clusters"], result["merged"]) == (1, 999)
        await merging.settle()
        [survivor] = {its.id for its in (await merging.memories(ids)).values() if its.state == "active"}
        assert await merging.held() == await desk.current_keys()
        assert {key.memory_id for key in await merging.held()} == {survivor, *others}
        gone = [its for its in ids if its != survivor][:20]
        await merging.restore(*gone)
        await merging.settle()
        assert await merging.held() == await desk.current_keys()
        assert {key.memory_id for key in await merging.held()} == {survivor, *others, *gone}


@pytest.fixture(scope="module")
def milvus() -> Generator[MilvusLite]:
    with MilvusLite() as server:
        yield server


@pytest.fixture
async def lite(milvus: MilvusLite) -> AsyncGenerator[MilvusIndex]:
    index = MilvusIndex(MilvusSettings(uri=milvus.uri))
    yield index
    await index.close()

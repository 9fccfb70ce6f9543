"""The job `merge` over a real Postgres; the index and the embedder are in memory."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from tests.integration.maintenance.merging import AT, SENTENCE, Merging, copies

from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.index import FloatArray
from memplane_core.storage.history import history_page
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.jobs import merge_planning

pytestmark = pytest.mark.anyio


@pytest.fixture
def index() -> MemoryIndex:
    return MemoryIndex()


@pytest.fixture
def merging(desk: MemoryDesk, index: MemoryIndex, embedder: HashEmbedder) -> Merging:
    return Merging(desk, index, embedder)


@pytest.fixture
def asking_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it costs: in so small a tenant it would not be asked."""
    monkeypatch.setattr(merge_planning, "_WORTH_A_SEARCH", 0)


class TestWhatBelongsTogether:
    async def test_hundreds_of_near_copies_become_one(self, merging: Merging) -> None:
        """A thousand do in test_merge_faults.py, over Milvus."""
        ids = await merging.write(*copies(400), user_id="u")
        [other] = await merging.write(SENTENCE.replace("green", "black"), user_id="u")
        result = await merging.run()
        assert (result["looked_at"], result["clusters"], result["merged"]) == (401, 1, 399)
        assert await merging.groups([*ids, other]) == sorted([set(ids), {other}], key=min)
        await merging.settle()
        assert len({key.memory_id for key in await merging.held()}) == 2

    async def test_other_numbers_denials_and_orders_stay_apart(self, merging: Merging) -> None:
        texts = (
            "Ana has 3 apples",
            "Ana has 4 apples",
            "Ana has not 3 apples",
            "3 apples has Ana",
            "Ana has 3 apples?",
        )
        ids = await merging.write(*texts, user_id="u")
        assert (await merging.run(threshold=0.5))["merged"] == 0
        assert (await merging.run(threshold=0.5, guard="facts"))["merged"] == 1  # but for their order
        assert await merging.groups(ids) == sorted([{ids[0], ids[3]}, {ids[1]}, {ids[2]}, {ids[4]}], key=min)

    @pytest.mark.parametrize(
        "fields",
        [
            {"user_id": "v"},
            {"agent_id": "a"},
            {"memory_type": "insight"},
            {"actor": "Ben"},
            {"valid_from": AT},
            {"valid_to": AT},
        ],
        ids=str,
    )
    async def test_what_is_anothers_or_of_another_type_stays_apart(
        self, merging: Merging, fields: dict[str, Any]
    ) -> None:
        base: dict[str, Any] = {"user_id": "u", "agent_id": None, "memory_type": "experience", "actor": None}
        await merging.write("Ana likes tea", **base)
        await merging.write("ana likes tea!", **{**base, **fields})
        assert (await merging.run(threshold=0.5))["merged"] == 0

    async def test_sessions_of_one_user_are_merged(self, merging: Merging) -> None:
        first = await merging.write("Ana likes tea", user_id="u", session_id="s1")
        second = await merging.write("ana likes tea!", user_id="u", session_id="s2")
        assert (await merging.run())["merged"] == 1
        assert await merging.groups([*first, *second]) == [{*first, *second}]

    async def test_events_of_different_days_stay_apart(self, merging: Merging) -> None:
        when = [AT, AT + timedelta(hours=20), AT + timedelta(hours=40)]
        ids = [
            (await merging.write(text, occurred_at=at, occurred_given=True))[0]
            for text, at in zip(("We ran", "we ran!", "we ran."), when, strict=True)
        ]
        assert (await merging.run(threshold=0.5))["merged"] == 1
        sizes = [len(group) for group in await merging.groups(ids)]
        assert sorted(sizes) == [1, 2]

    async def test_every_chunk_of_a_long_memory_has_to_match(self, merging: Merging) -> None:
        head = "the meeting went on and everybody had something to say about the new office " * 6
        rome, oslo = "it is in Rome and has a garden", "it is in Oslo near the old harbour"
        ids = await merging.write(head + rome, head.upper() + rome, head + oslo)
        assert (await merging.run(threshold=0.97, guard="none"))["merged"] == 1
        assert await merging.groups(ids) == sorted([{ids[0], ids[1]}, {ids[2]}], key=min)

    async def test_expired_hidden_and_unembeddable_memories_take_no_part(self, merging: Merging) -> None:
        past = datetime.now(UTC) - timedelta(hours=1)
        await merging.write("Ana likes tea", expires_at=past)
        await merging.write("ana likes tea!")
        [poison] = await merging.write("ana likes tea \N{SKULL AND CROSSBONES}", embedded=False)
        result = await merging.run(guard="none", threshold=0.5)
        assert (result["merged"], result["waiting"]) == (0, 0)
        assert (await merging.memories([poison]))[poison].index_state == "failed"


@pytest.mark.usefixtures("asking_the_index")
class TestCompleteLinkage:
    @pytest.mark.parametrize("priorities", [(3, 5, 3), (5, 3, 3), (3, 3, 5)], ids=str)
    async def test_a_like_b_and_b_like_c_never_end_as_one(
        self, merging: Merging, priorities: tuple[int, int, int]
    ) -> None:
        """Not in one run, nor in later ones, whoever of the two that were merged has stayed."""
        merging.embedder = Arc()
        merging = Merging(MemoryDesk(merging.desk.database, merging.desk.tenant, Arc()), merging.index, Arc())
        ids: list[UUID] = []
        for text, priority in zip(("0 degrees", "10 degrees", "19 degrees"), priorities, strict=True):
            ids += await merging.write(text, priority=priority)
        await merging.run(guard="none", threshold=0.98)
        assert await merging.groups(ids) == sorted([{ids[0]}, {ids[1], ids[2]}], key=min)
        await merging.run(guard="none", threshold=0.98, full=True)
        assert await merging.groups(ids) == sorted([{ids[0]}, {ids[1], ids[2]}], key=min)

    async def test_what_comes_later_is_compared_with_all_that_one_stands_for(self, merging: Merging) -> None:
        merging = Merging(MemoryDesk(merging.desk.database, merging.desk.tenant, Arc()), merging.index, Arc())
        ids = await merging.write("0 degrees")
        ids += await merging.write("10 degrees", priority=5)
        await merging.run(guard="none", threshold=0.98)
        assert await merging.groups(ids) == [set(ids)]
        ids += await merging.write("19 degrees")  # near to the one that stayed, not to the other
        ids += await merging.write("5 degrees")  # near to both
        await merging.run(guard="none", threshold=0.98)
        assert await merging.groups(ids) == sorted([{ids[0], ids[1], ids[3]}, {ids[2]}], key=min)


class TestWhoStays:
    async def test_it_keeps_its_text_and_takes_scenes_uses_and_what_is_greatest(self, merging: Merging) -> None:
        [low] = await merging.write("Ana likes tea", scene=["a", "b"], importance=0.9, priority=2)
        [high] = await merging.write("ana likes tea!", scene=["c", "b"], importance=0.1, priority=4)
        await merging.sql(
            "UPDATE memory_usage SET access_count = 7, last_accessed_at = $2 WHERE memory_id = $1", low, AT
        )
        late = AT + timedelta(days=300)
        await merging.sql(
            "UPDATE memory_usage SET access_count = 2, last_accessed_at = $2 WHERE memory_id = $1", high, late
        )
        await merging.run()
        found = await merging.memories([low, high])
        stayed, gone = found[high], found[low]
        assert (stayed.content, stayed.scene, stayed.importance) == ("ana likes tea!", ["c", "b", "a"], 0.9)
        assert (stayed.priority, stayed.access_count, stayed.last_accessed_at) == (4, 9, late)
        assert (gone.state, gone.merged_into) == ("merged", high)
        assert gone.purge_at is not None
        assert timedelta(days=29) < gone.purge_at - datetime.now(UTC) < timedelta(days=31)
        async with merging.desk.database.tenant(merging.desk.tenant) as connection:
            past = [
                (await history_page(merging.desk.tenant, connection, its, before=None, limit=1))[0]
                for its in (high, low)
            ]
        assert [entry.event for entry in past] == ["absorbed", "merged"]
        assert past[0].changes == {
            "scene": ["c", "b"],
            "importance": 0.1,
            "access_count": 2,
            "memories": [str(low)],
        }

    async def test_a_pinned_one_stays_as_it_is_and_takes_what_has_no_other_scene(self, merging: Merging) -> None:
        [pinned] = await merging.write("Ana likes tea", pinned=True, priority=1, scene=["a"])
        [same, other, more] = [
            (await merging.write(text, priority=5, scene=scene))[0]
            for text, scene in (("ana likes tea!", []), ("ana likes tea.", ["b"]), ("Ana likes tea,", ["b"]))
        ]
        await merging.run()
        found = await merging.memories([pinned, same, other, more])
        assert found[same].merged_into == pinned
        assert (found[pinned].priority, found[pinned].scene, found[pinned].pinned) == (1, ["a"], True)
        assert {found[other].merged_into, found[more].merged_into} in ({None, other}, {None, more})

    async def test_two_pinned_ones_both_stay(self, merging: Merging) -> None:
        ids = await merging.write("Ana likes tea", "ana likes tea!", pinned=True)
        assert (await merging.run())["merged"] == 0
        assert await merging.groups(ids) == sorted([{ids[0]}, {ids[1]}], key=min)

    async def test_no_memory_gets_more_than_32_scenes(self, merging: Merging) -> None:
        ids: list[UUID] = []
        for n, text in enumerate(copies(4)):
            ids += await merging.write(text, scene=[f"{n}-{tag}" for tag in range(12)], priority=5 - n)
        await merging.run()
        found = await merging.memories(ids)
        assert sorted(len(memory.scene) for memory in found.values() if memory.state == "active") == [24, 24]


class TestRuns:
    async def test_a_dry_run_tells_what_the_next_real_one_does_and_changes_nothing(self, merging: Merging) -> None:
        for n in range(3):
            await merging.write(*copies(20, f"number {n}: {SENTENCE}"), user_id=f"u{n % 2}")
        await merging.settle()
        before = await merging.everything()
        dry = await merging.finish(await merging.ask(dry_run=True))
        assert await merging.everything() == before
        real = await merging.finish(await merging.ask())
        assert (real.result, real.sample) == (dry.result, dry.sample)
        assert (real.result["clusters"], real.result["merged"]) == (3, 3 * 19)
        found = await merging.memories(real.sample)
        assert [found[its].merged_into for its in real.sample] == [
            into for stays in real.sample[::2] for into in (None, stays)
        ]
        assert await merging.sql("SELECT count(*) FROM merge_plan") == 0

    async def test_the_same_run_again_changes_nothing_more(self, merging: Merging) -> None:
        await merging.write(*copies(20))
        await merging.run()
        before = await merging.everything()
        assert (await merging.run(full=True))["merged"] == 0
        assert await merging.everything() == before

    @pytest.mark.usefixtures("asking_the_index")
    async def test_only_what_was_changed_since_the_last_run_is_looked_at(self, merging: Merging) -> None:
        ids = await merging.write(*(f"fact {n} of many" for n in range(100)))
        assert (await merging.run())["looked_at"] == 100
        await merging.sql("UPDATE memory SET updated_at = updated_at - interval '1 day'")
        await merging.sql("UPDATE merge_mark SET seen = seen - interval '1 hour'")
        ids += await merging.write("Fact 7, of many!")
        result = await merging.run()
        assert (result["looked_at"], result["merged"]) == (1, 1)
        assert await merging.groups([ids[7], ids[-1]]) == [{ids[7], ids[-1]}]
        # Other rules, and all of it counts again.
        assert (await merging.run(guard="facts"))["looked_at"] == 100

    async def test_what_the_index_cannot_show_yet_is_left_to_the_next_run(self, merging: Merging) -> None:
        ids = await merging.write("Ana likes tea")
        await merging.run()
        ids += await merging.write("ana likes tea!", embedded=False)
        await merging.sql("UPDATE memory SET updated_at = updated_at - interval '1 day'")
        await merging.sql("UPDATE merge_mark SET seen = seen - interval '2 days'")
        job = await merging.finish(await merging.ask())
        assert (job.result["waiting"], job.result["merged"]) == (1, 0)
        assert (await merging.run())["merged"] == 1
        assert await merging.groups(ids) == [set(ids)]

    async def test_without_the_index_postgres_names_what_is_alike(self, merging: Merging, index: MemoryIndex) -> None:
        await merging.write(*copies(30))
        await merging.settle()
        index.down = True
        job = await merging.finish(await merging.ask())
        assert job.result["merged"] == 29

    @pytest.mark.usefixtures("asking_the_index")
    async def test_an_index_that_is_behind_still_leads_to_who_stands_for_what_it_names(self, merging: Merging) -> None:
        first = await merging.write(*copies(80))
        await merging.run()  # the index still holds all of them, and names no others
        later = await merging.write(*copies(81)[80:])
        async with merging.desk.database.tenant(merging.desk.tenant) as connection:
            await connection.execute("UPDATE outbox SET not_before = 'infinity' WHERE op = 'delete'")
        await merging.drainer.drain(merging.desk.tenant)
        job_id = await merging.ask()
        await merging.sql("UPDATE job SET not_before = clock_timestamp() RETURNING 1")
        await merging.runner.run(merging.desk.tenant, job_id)
        assert await merging.groups([*first, *later]) == [{*first, *later}]


class Arc(HashEmbedder):
    """Turns "n degrees" into the direction of that angle, whatever stands before it."""

    def _passage(self, item: EmbedItem) -> Any:
        made = super()._passage(item)
        angle = np.radians(float(item.text.split()[0]))
        vectors: FloatArray = np.zeros_like(made.vectors)
        vectors[:, 0], vectors[:, 1] = np.cos(angle), np.sin(angle)
        return type(made)(made.windows, vectors)

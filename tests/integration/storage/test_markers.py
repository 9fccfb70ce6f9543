"""Hiding memories and bringing them back, at the statements that everything which hides calls."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from memplane_core.domain.errors import DuplicateMemory, QuotaExceeded
from memplane_core.domain.index import IndexKey
from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage import memories
from memplane_core.storage.history import history_page
from memplane_core.storage.markers import Author, HiddenState, hide, unhide
from memplane_core.storage.memory_writes import PlaceTakenError
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.rows import eventually
from memplane_maintenance.drain import Drainer, DrainLimits

pytestmark = pytest.mark.anyio

BY: Final = Author("a-key", "a-request")
LATER: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY: Final = b"k" * 32


class Shelf:
    """A tenant's memories, and an index that is told of them."""

    def __init__(self, database: Database, tenant: TenantId) -> None:
        self.database = database
        self.tenant = tenant
        embedder = HashEmbedder(window=20)
        self.desk = MemoryDesk(database, tenant, embedder)
        self.index = MemoryIndex()
        self._drainer = Drainer(database, self.index, embedder, limits=DrainLimits(fresh_s=0.0))

    async def hide(self, *ids: UUID, state: HiddenState = "forgotten", **more: Any) -> list[UUID]:
        async with self.database.tenant(self.tenant) as connection:
            return await hide(self.tenant, connection, ids, state=state, purge_at=LATER, author=BY, **more)

    async def unhide(self, *ids: UUID, state: HiddenState = "forgotten") -> list[UUID]:
        async with self.database.tenant(self.tenant) as connection:
            return await unhide(self.tenant, connection, ids, state=state, author=BY)

    async def drained(self) -> set[IndexKey]:
        """What the index holds once it has been told everything."""
        for _ in range(3):  # removals run twice
            await self.desk.pass_time()
            await self._drainer.drain(self.tenant)
        generation = await self.desk.generation()
        return set((await self.index.keys_after(self.tenant, generation, limit=1_000)).keys)

    async def read(self, *ids: UUID) -> list[Memory]:
        async with self.database.tenant(self.tenant) as connection:
            found = await memories.read(self.tenant, connection, ids)
        return [found[memory_id] for memory_id in ids]

    async def words(self) -> dict[UUID, str]:
        """By memory, all that it is looked up and scored by."""
        return await self._texts("SELECT memory_id, w::text AS text FROM memory_words w WHERE tenant_id = $1")

    async def chunks(self) -> dict[UUID, str]:
        """By memory, all its chunks, vectors included."""
        return await self._texts(
            """
            SELECT memory_id, string_agg((n, span_start, span_end, embedding)::text, ' ' ORDER BY n) AS text
            FROM chunk WHERE tenant_id = $1 GROUP BY memory_id
            """
        )

    async def waits(self) -> bool:
        """Whether somebody waits for a lock."""
        async with self.database.system() as connection:
            return await connection.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')"
            )

    async def _texts(self, query: str) -> dict[UUID, str]:
        async with self.database.tenant(self.tenant) as connection:
            return {row["memory_id"]: row["text"] for row in await connection.fetch(query, self.tenant)}


@pytest.fixture
def shelf(database: Database, tenant: TenantId) -> Shelf:
    return Shelf(database, tenant)


class TestHiding:
    async def test_takes_a_memory_out_of_words_and_index_and_keeps_all_else(self, shelf: Shelf) -> None:
        gone, kept = await shelf.desk.write("one long text about zebras and more", "another", scene=["a"], actor="Ana")
        held = await shelf.drained()
        chunks = await shelf.chunks()
        assert await shelf.hide(gone) == [gone]
        assert await shelf.drained() == {key for key in held if key.memory_id == kept} != held
        assert list(await shelf.words()) == [kept]
        assert await shelf.chunks() == chunks
        [memory] = await shelf.read(gone)
        assert (memory.state, memory.purge_at, memory.version, memory.scene) == ("forgotten", LATER, 2, ["a"])

    async def test_says_so_in_the_history(self, shelf: Shelf) -> None:
        [memory_id, into] = await shelf.desk.write("one", "two")
        await shelf.hide(memory_id, state="merged", merged_into={memory_id: into})
        await shelf.unhide(memory_id, state="merged")
        async with shelf.database.tenant(shelf.tenant) as connection:
            past = await history_page(shelf.tenant, connection, memory_id, before=None, limit=10)
        assert [(entry.version, entry.event, entry.key_id, entry.request_id) for entry in past[:2]] == [
            (3, "restored", "a-key", "a-request"),
            (2, "merged", "a-key", "a-request"),
        ]
        assert past[0].changes == {
            "state": "merged",
            "merged_into": str(into),
            "purge_at": LATER.isoformat(),
        }
        assert past[1].changes == {"state": "active"}

    async def test_passes_over_what_is_hidden_unknown_or_anothers(self, shelf: Shelf) -> None:
        merged, mine = await shelf.desk.write("one", "two")
        await shelf.hide(merged, state="merged", merged_into={merged: mine})
        before = await shelf.read(merged)
        assert await shelf.hide(merged, UUID(int=7), mine) == [mine]
        assert await shelf.read(merged) == before
        assert before[0].merged_into == mine
        assert await shelf.unhide(merged, UUID(int=7)) == []  # it is merged, not forgotten

    async def test_overtakes_what_was_never_sent(self, shelf: Shelf) -> None:
        [memory_id] = await shelf.desk.write("not sent yet", embedded=False)
        await shelf.hide(memory_id)
        assert await shelf.drained() == set()
        assert {(row.op, row.done) for row in await shelf.desk.outbox()} == {("delete", True)}


class TestBringingBack:
    async def test_gives_back_every_byte_under_a_new_index_key(self, shelf: Shelf) -> None:
        fields: dict[str, Any] = {"scene": ["a", "b"], "actor": "Ana", "user_id": "u", "session_id": "s", "priority": 5}
        [memory_id] = await shelf.desk.write("  a long text\r\nabout zebras, 斑马, with a tail ", **fields)
        await shelf.drained()
        [before], words, chunks = await shelf.read(memory_id), await shelf.words(), await shelf.chunks()
        await shelf.hide(memory_id)
        assert await shelf.unhide(memory_id) == [memory_id]
        held = await shelf.drained()
        [after] = await shelf.read(memory_id)
        same = {"version": before.version + 2, "updated_at": after.updated_at}
        assert after == msgspec.structs.replace(before, **same)
        assert (await shelf.words(), await shelf.chunks()) == (words, chunks)
        assert held == {IndexKey(memory_id, 2, n) for n in range(3)}

    async def test_works_again_and_again(self, shelf: Shelf) -> None:
        [memory_id] = await shelf.desk.write("zebra")
        for rev in range(2, 5):
            await shelf.drained()
            await shelf.hide(memory_id)
            await shelf.unhide(memory_id)
            assert await shelf.drained() == {IndexKey(memory_id, rev, 0)}

    async def test_is_refused_where_a_twin_has_come(self, shelf: Shelf) -> None:
        [first] = await shelf.desk.write("zebra", dedup_key=KEY)
        await shelf.hide(first)
        [second] = await shelf.desk.write("zebra", dedup_key=KEY)
        with pytest.raises(DuplicateMemory) as refused:
            await shelf.unhide(first)
        assert refused.value.extra == {"id": second}
        await shelf.hide(second)
        with pytest.raises(DuplicateMemory):
            await shelf.unhide(first, second)
        assert await shelf.unhide(first) == [first]

    async def test_goes_before_an_expired_twin(self, shelf: Shelf) -> None:
        [first] = await shelf.desk.write("zebra", dedup_key=KEY)
        await shelf.hide(first)
        await shelf.desk.write("zebra", dedup_key=KEY, expires_at=datetime.now(UTC) - timedelta(hours=1))
        assert await shelf.unhide(first) == [first]

    async def test_of_one_that_has_expired_leaves_a_living_twin_in_its_place(self, shelf: Shelf) -> None:
        [first] = await shelf.desk.write("zebra", dedup_key=KEY, expires_at=datetime.now(UTC) - timedelta(hours=1))
        await shelf.hide(first)
        [second] = await shelf.desk.write("zebra", dedup_key=KEY)
        assert await shelf.unhide(first) == [first]
        async with shelf.database.tenant(shelf.tenant) as connection:
            twins = await memories.find_twins(shelf.tenant, connection, [KEY])
        assert twins[KEY].memory.id == second

    async def test_loses_against_a_twin_that_comes_at_the_same_moment(self, shelf: Shelf) -> None:
        [first] = await shelf.desk.write("zebra", dedup_key=KEY)
        await shelf.hide(first)
        async with AsyncExitStack() as twin:
            await twin.enter_async_context(shelf.desk.transaction("zebra", dedup_key=KEY))
            unhiding = asyncio.create_task(shelf.unhide(first))
            assert await eventually(shelf.waits, bool)  # for the twin that it could not see
        with pytest.raises(PlaceTakenError):
            await unhiding
        assert [memory.state for memory in await shelf.read(first)] == ["forgotten"]

    async def test_needs_room_in_the_quota(self, shelf: Shelf, postgres_settings: PostgresSettings) -> None:
        [first] = await shelf.desk.write("one")
        await shelf.hide(first)
        await shelf.desk.write("two")
        async with Database.open(postgres_settings, stored_memories=1) as small:
            with pytest.raises(QuotaExceeded):
                async with small.tenant(shelf.tenant) as connection:
                    await unhide(shelf.tenant, connection, [first], state="forgotten", author=BY)

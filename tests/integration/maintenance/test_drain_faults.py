"""A drain that dies at any line, runs twice at once, or falls asleep in between."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from memplane_core.domain.embedding import EmbedItem, Lane
from memplane_core.domain.index import Generation, IndexKey, IndexRow
from memplane_core.domain.ports import EmbeddedText
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.faults import (
    Died,
    Gate,
    GatedDatabase,
    GatedIndex,
    MortalDatabase,
    MortalIndex,
    Mortality,
)
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.vectors import MilvusIndex
from memplane_maintenance.drain import Drainer, DrainLimits

pytestmark = pytest.mark.anyio

LIMITS = DrainLimits()


class Clock:
    """Time for leases, which a test moves on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return time.monotonic() + self.ahead_s


async def stored(desk: MemoryDesk, index: MemoryIndex) -> set[IndexKey]:
    """All keys that the index holds."""
    return set((await index.keys_after(desk.tenant, await desk.generation(), limit=16_383)).keys)


async def settle(desk: MemoryDesk, drainer: Drainer) -> None:
    """Drain until nothing is left to do, however long its time would have come."""
    for _ in range(20):
        await desk.pass_time()
        await drainer.drain(desk.tenant)
        if all(row.done for row in await desk.outbox()):
            return
    raise AssertionError(await desk.outbox())


class TestDeath:
    async def test_at_every_moment_nothing_is_lost_and_nothing_stays_that_should_not(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder
    ) -> None:
        """Each round: writes, an edit and a delete, then a drain that dies one moment later than the last."""
        index = MortalIndex()
        index.batch_rows = 3
        healthy = Drainer(database, index, embedder, limits=LIMITS)
        moments, finished = 0, False
        while not finished:
            moments += 1
            kept, edited, gone = await desk.write("kept", "word " * 60, "gone")
            await healthy.drain(desk.tenant)
            await desk.write("raw", embedded=False)
            await desk.edit(edited, content=f"edited {moments}")
            await desk.edit(kept, user_id=f"user {moments}")
            await desk.remove(gone)
            mortality = Mortality(moments)
            index.mortality = mortality
            try:
                await Drainer(MortalDatabase(database, mortality), index, embedder, limits=LIMITS).drain(desk.tenant)
                finished = True
            except Died:
                pass
            index.mortality = Mortality(None)
            await settle(desk, healthy)
            assert await stored(desk, index) == await desk.current_keys(), f"died at moment {moments}"
        assert moments > 25  # it did get to each of the steps
        assert len(await desk.current_keys()) == moments * 3


class TestTwoAtOnce:
    async def test_only_one_works_and_each_row_is_sent_once(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder
    ) -> None:
        index = GatedIndex()
        index.gate.close()
        await desk.write(*(f"text {n}" for n in range(30)))
        drainer = Drainer(database, index, embedder, limits=LIMITS)
        first = asyncio.create_task(drainer.drain(desk.tenant))
        await index.gate.reached()
        others = [Drainer(database, index, embedder, limits=LIMITS).drain(desk.tenant) for _ in range(7)]
        assert [report.taken for report in await asyncio.gather(*others)] == [False] * 7
        index.gate.open()
        assert (await first).indexed == 30
        assert len(index.sent) == len(set(index.sent)) == 30

    async def test_a_writer_that_holds_what_it_completes_makes_it_begin_again_without_a_pause(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder
    ) -> None:
        index = GatedIndex()
        index.gate.close()
        ids = await desk.write("one", "two")
        drainer = Drainer(database, index, embedder, limits=LIMITS)
        running = asyncio.create_task(drainer.drain(desk.tenant))
        await index.gate.reached()
        async with database.tenant(desk.tenant) as connection:
            touch = "UPDATE outbox SET created_at = created_at WHERE tenant_id = $1 AND memory_id = $2"
            await connection.execute(touch, desk.tenant, ids[1])
            index.gate.open()
            await self._waits_for_a_lock(database)
            await connection.execute(touch, desk.tenant, ids[0])  # each waits for the other now; the drain gives in
        report = await running
        assert (report.obstacle, report.more) == ("contention", True)
        assert (await drainer.drain(desk.tenant)).indexed == 2

    @staticmethod
    async def _waits_for_a_lock(database: Database) -> None:
        async with asyncio.timeout(10):
            while True:
                async with database.system() as connection:
                    if await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                        return
                await asyncio.sleep(0.01)


class TestStalls:
    async def test_in_the_call_while_memories_change_hands_no_stale_row_stays(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder
    ) -> None:
        index = GatedIndex()
        index.gate.close()
        edited, gone, untouched = await desk.write("word " * 60, "gone", "untouched")
        sleeper = asyncio.create_task(Drainer(database, index, embedder, limits=LIMITS).drain(desk.tenant))
        await index.gate.reached()
        await desk.edit(edited, content="edited")
        await desk.remove(gone)
        other = Drainer(database, index, embedder, limits=LIMITS)
        await settle(desk, other)  # the removals of the old forms have run twice, before what they remove is there
        current = await desk.current_keys()
        assert current == {IndexKey(edited, 2, 0), IndexKey(untouched, 1, 0)}
        assert await stored(desk, index) == current
        index.gate.open()
        report = await sleeper
        assert (report.indexed, report.overtaken) == (0, 3)
        late = set(index.sent) - current
        assert {(key.memory_id, key.rev) for key in late} == {(edited, 1), (gone, 1)}
        assert len(late) == 3  # the long form had two chunks
        assert report.removed == 2  # it saw that it came too late
        await settle(desk, other)
        assert await stored(desk, index) == current

    async def test_in_a_call_to_milvus_lite_the_same(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder
    ) -> None:
        gate = Gate()
        gate.close()

        class GatedMilvus(MilvusIndex):
            async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
                await gate.pass_through()
                await super().upsert(tenant, generation, rows)

        with MilvusLite() as server:
            index = GatedMilvus(MilvusSettings(uri=server.uri))
            drainer = Drainer(database, index, embedder, limits=LIMITS)
            edited, gone, untouched = await desk.write("word " * 60, "gone", "untouched")
            old = await desk.current_keys()
            sleeper = asyncio.create_task(drainer.drain(desk.tenant))
            await gate.reached()
            await desk.edit(edited, content="edited")
            await desk.remove(gone)
            await settle(desk, drainer)
            gate.open()
            assert (await sleeper).overtaken == 3
            await settle(desk, drainer)
            generation, current = await desk.generation(), {IndexKey(edited, 2, 0), IndexKey(untouched, 1, 0)}
            assert await index.keys_present(desk.tenant, generation, sorted(old | current)) == current
            assert await index.count(desk.tenant, generation) == 2
            await index.close()

    async def test_between_reading_and_sending_nothing_is_sent_once_another_has_the_lease(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock()
        monkeypatch.setattr("memplane_core.storage.leases.time", clock)
        index = GatedIndex()
        other = Drainer(database, index, embedder, limits=LIMITS)
        await desk.write("makes the collection")
        await other.drain(desk.tenant)
        for nth in range(1, 20):  # asleep after the nth transaction, of which the first takes the lease
            [edited] = await desk.write("one")
            gate = Gate()
            gate.close()
            sleepy = Drainer(
                GatedDatabase(database, after=nth, sleeps=gate.pass_through), index, embedder, limits=LIMITS
            )
            sleeper = asyncio.create_task(sleepy.drain(desk.tenant))
            reached = asyncio.create_task(gate.reached())
            await asyncio.wait([sleeper, reached], return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done():  # it has no nth transaction
                reached.cancel()
                assert nth > 6
                return
            clock.ahead_s += LIMITS.lease_s  # it sleeps until its lease has ended
            async with database.tenant(desk.tenant) as connection:
                await connection.execute("UPDATE lease SET expires_at = clock_timestamp()")
            await desk.edit(edited, user_id="u2")
            await other.drain(desk.tenant)
            sent = list(index.sent)
            gate.open()
            await sleeper
            assert index.sent == sent, f"asleep after transaction {nth}"
            await settle(desk, other)
            assert await stored(desk, index) == await desk.current_keys()
        raise AssertionError("a drain of one row has twenty transactions")

    async def test_while_embedding_the_chunks_of_an_edited_text_are_left_alone(
        self, desk: MemoryDesk, database: Database
    ) -> None:
        gate = Gate()
        gate.close()

        class SlowEmbedder(HashEmbedder):
            async def embed_passages(
                self, tenant: TenantId, items: Sequence[EmbedItem], *, model: str, lane: Lane, timeout_s: float
            ) -> list[EmbeddedText]:
                await gate.pass_through()
                return await super().embed_passages(tenant, items, model=model, lane=lane, timeout_s=timeout_s)

        index = MemoryIndex()
        edited, gone, raw = await desk.write("one", "gone", "raw", embedded=False)
        drainer = Drainer(database, index, SlowEmbedder(), limits=LIMITS)
        running = asyncio.create_task(drainer.drain(desk.tenant))
        await gate.reached()
        await desk.edit(edited, content="two")
        await desk.remove(gone)
        gate.open()
        report = await running
        assert (report.embedded, report.indexed) == (1, 2)
        await settle(desk, drainer)
        assert await stored(desk, index) == {IndexKey(edited, 2, 0), IndexKey(raw, 1, 0)}

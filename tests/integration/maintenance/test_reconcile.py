"""Postgres and the index compared both ways: what is found, what is mended, what is left alone."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.integration.maintenance.reconciling import NONE, Reconciling

from memplane_core.domain.collections import CollectionName, KeyPage
from memplane_core.domain.index import Generation, IndexKey
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.leases import take_lease
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import POISON, HashEmbedder
from memplane_core.testing.faults import Gate
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

TEXTS = [f"note {n} about thing {n % 7}" for n in range(30)]


@pytest.fixture
def reconciling(desk: MemoryDesk, embedder: HashEmbedder) -> Reconciling:
    return Reconciling(desk, MemoryIndex(), embedder)


class TestRowsThatTheIndexLacks:
    async def test_they_are_sent_again_and_postgres_answers_for_them_meanwhile(self, reconciling: Reconciling) -> None:
        ids = await reconciling.desk.write(*TEXTS, "word " * 400)
        await reconciling.settle()
        whole = await reconciling.held()
        lost = [key for key in sorted(whole) if key.memory_id in {ids[0], ids[1], ids[-1]}]
        assert len(lost) > 5
        await reconciling.lose(*lost[:2], lost[-1])
        await reconciling.sql("DELETE FROM outbox WHERE memory_id = $1", ids[0])  # trimmed, as after an hour
        assert await reconciling.run() == NONE | {"missing": 3, "requeued": 3}
        async with reconciling.desk.database.tenant(reconciling.desk.tenant) as connection:
            fresh = await connection.fetch("SELECT memory_id FROM outbox WHERE fresh_until = 'infinity'")
        assert {row["memory_id"] for row in fresh} == {ids[0], ids[1], ids[-1]}
        assert await reconciling.is_mended()
        assert await reconciling.held() == whole
        assert await reconciling.run() == NONE

    async def test_what_waits_to_be_sent_is_no_drift(self, reconciling: Reconciling) -> None:
        await reconciling.desk.write(*TEXTS[:5])
        await reconciling.settle()
        await reconciling.desk.write(*TEXTS[5:], embedded=False)
        assert await reconciling.run() == NONE

    async def test_what_can_never_be_indexed_stays_failed(self, reconciling: Reconciling) -> None:
        [poison, _] = await reconciling.desk.write(f"some {POISON}", "good", embedded=False)
        await reconciling.settle()
        assert await reconciling.run() == NONE
        assert [row.memory_id for row in await reconciling.desk.outbox() if row.error] == [poison]


class TestRowsThatItShouldNotHold:
    async def test_what_is_gone_or_superseded_is_removed_by_the_outbox(self, reconciling: Reconciling) -> None:
        desk = reconciling.desk
        edited, _ = await desk.write("one", "two")
        await desk.edit(edited, content="another")
        await reconciling.settle()
        strangers = [IndexKey(uuid4(), 1, 0), IndexKey(uuid4(), 7, 3), IndexKey(edited, 1, 0), IndexKey(edited, 1, 4)]
        await reconciling.put(*strangers)
        assert await reconciling.run() == NONE | {"stale": 4, "removed": 4}
        assert await reconciling.run() == NONE  # the outbox is about to
        assert await reconciling.is_mended()

    async def test_a_hidden_memory_is_removed_and_comes_back_under_another_revision(
        self, reconciling: Reconciling
    ) -> None:
        [memory_id] = await reconciling.desk.write("one")
        await reconciling.settle()
        await reconciling.sql("UPDATE memory SET state = 'forgotten'")
        assert await reconciling.run() == NONE | {"stale": 1, "removed": 1}
        await reconciling.settle()
        assert await reconciling.held() == set()
        await reconciling.sql("UPDATE memory SET state = 'active'")
        await reconciling.desk.edit(memory_id, importance=0.6)
        assert await reconciling.is_mended()
        assert await reconciling.held() == {IndexKey(memory_id, 2, 0)}

    async def test_keys_that_a_later_write_may_take_are_removed_once_and_never_again(
        self, reconciling: Reconciling
    ) -> None:
        """Postgres was put back to an earlier state: the index has a revision that is still to come."""
        [memory_id] = await reconciling.desk.write("one")
        await reconciling.settle()
        to_come = [IndexKey(memory_id, 2, 0), IndexKey(memory_id, 2, 1), IndexKey(memory_id, 1, 5)]
        await reconciling.put(*to_come, IndexKey(memory_id, 2**40, 0), IndexKey(uuid4(), 1, 10**9))
        assert await reconciling.run() == NONE | {"stale": 5, "removed": 5}
        assert await reconciling.held() == {IndexKey(memory_id, 1, 0)}
        assert [row.op for row in await reconciling.desk.outbox()] == ["upsert"]
        await reconciling.desk.edit(memory_id, content="the second revision")
        assert await reconciling.is_mended()
        assert await reconciling.held() == {IndexKey(memory_id, 2, 0)}

    async def test_while_a_drain_is_under_way_such_keys_wait(self, reconciling: Reconciling) -> None:
        desk = reconciling.desk
        [memory_id] = await desk.write("one")
        await reconciling.settle()
        await reconciling.put(IndexKey(memory_id, 2, 0))
        job_id = await reconciling.ask()
        await desk.pass_time()
        await take_lease(desk.tenant, desk.database, name="drain", owner="a drain", ttl_s=30)
        assert (await reconciling.runner.run(desk.tenant, job_id)).ended is None
        assert IndexKey(memory_id, 2, 0) in await reconciling.held()
        assert (await reconciling.finish(job_id)).result["removed"] == 1
        assert IndexKey(memory_id, 2, 0) not in await reconciling.held()


class TestWhatPostgresLacks:
    async def test_memories_without_chunks_or_outbox_are_embedded_and_words_are_restored(
        self, reconciling: Reconciling
    ) -> None:
        desk = reconciling.desk
        ids = await desk.write(*TEXTS[:6], user_id="u1", session_id="s1", actor="Ann")
        await reconciling.settle()
        async with desk.database.tenant(desk.tenant) as connection:
            before = await connection.fetch("SELECT * FROM memory_words ORDER BY memory_id")
        await reconciling.sql("DELETE FROM chunk WHERE memory_id = ANY($1)", ids[:2])
        await reconciling.sql("UPDATE chunk SET embedding = NULL WHERE memory_id = $1", ids[2])
        await reconciling.sql("DELETE FROM outbox WHERE memory_id = ANY($1)", [ids[0], ids[3]])
        await reconciling.sql("DELETE FROM memory_words WHERE memory_id = ANY($1)", ids[3:5])
        found = await reconciling.run()
        # Their keys are unknown to Postgres until it has the chunks again.
        assert found == NONE | {"unqueued": 3, "requeued": 3, "wordless": 2, "stale": 3, "removed": 3}
        assert await reconciling.is_mended()
        assert {key.memory_id for key in await reconciling.held()} == set(ids)
        async with desk.database.tenant(desk.tenant) as connection:
            after = await connection.fetch("SELECT * FROM memory_words ORDER BY memory_id")
        assert [_words(row) for row in after] == [_words(row) for row in before]


def _words(row: Any) -> dict[str, Any]:
    return {name: sorted(value) if name == "marks" else value for name, value in row.items()}


class TestDryRun:
    async def test_it_counts_what_a_run_finds_and_changes_nothing(self, reconciling: Reconciling) -> None:
        desk = reconciling.desk
        ids = await desk.write(*TEXTS)
        await reconciling.settle()
        await reconciling.lose(IndexKey(ids[0], 1, 0), IndexKey(ids[1], 1, 0))
        await reconciling.put(IndexKey(uuid4(), 1, 0), IndexKey(ids[3], 4, 0))
        await reconciling.sql("DELETE FROM memory_words WHERE memory_id = $1", ids[4])
        await reconciling.sql("DELETE FROM chunk WHERE memory_id = $1", ids[5])
        await desk.write("on its way")
        held, outbox = await reconciling.held(), await desk.outbox()
        forecast = await reconciling.finish(await reconciling.ask(dry_run=True))
        assert (await reconciling.held(), await desk.outbox()) == (held, outbox)
        real = await reconciling.finish(await reconciling.ask())
        assert real.result == forecast.result
        assert (real.result["missing"], real.result["stale"], real.result["wordless"]) == (2, 3, 1)
        assert (real.done, real.total) == (31, 31)
        assert await reconciling.is_mended()


class SteppedIndex(MemoryIndex):
    """Stops at a gate after the first answer about what one generation holds."""

    def __init__(self, number: int = 1) -> None:
        super().__init__()
        self.gate = Gate()
        self._number = number

    async def _pass_through(self, generation: Generation | CollectionName) -> None:
        if generation.number == self._number:
            await self.gate.pass_through()

    async def keys_present(
        self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]
    ) -> frozenset[IndexKey]:
        found = await super().keys_present(tenant, generation, keys)
        await self._pass_through(generation)
        return found

    async def keys_after(
        self, tenant: TenantId, generation: Generation | CollectionName, after: str = "", *, limit: int
    ) -> KeyPage:
        page = await super().keys_after(tenant, generation, after, limit=limit)
        await self._pass_through(generation)
        return page


class TestAmongWrites:
    async def test_edits_and_deletes_at_the_same_time_are_no_drift(
        self, desk: MemoryDesk, embedder: HashEmbedder
    ) -> None:
        index = SteppedIndex()
        reconciling = Reconciling(desk, index, embedder)
        ids = await desk.write(*TEXTS)
        await reconciling.settle()
        for wrong in (False, True):
            if wrong:
                await reconciling.lose(*sorted(await reconciling.held())[-4:])
            job_id = await reconciling.ask()
            index.gate.close()
            running = asyncio.create_task(reconciling.slice(job_id))
            await index.gate.reached()
            await desk.edit(ids.pop(), content="changed meanwhile")
            await desk.remove(ids.pop())
            new = await desk.write("new meanwhile")
            await reconciling.drainer.drain(desk.tenant)
            index.gate.open()
            assert (await running).ended == "done"
            counts = (await reconciling.finish(job_id)).result
            assert counts["stale"] == 0
            assert counts["missing"] == counts["requeued"]
            assert counts["missing"] == (2 if wrong else 0)
            assert await reconciling.is_mended()
            assert new[0] in {key.memory_id for key in await reconciling.held()}

    async def test_under_constant_writes_it_finds_nothing_and_harms_nothing(self, reconciling: Reconciling) -> None:
        desk = reconciling.desk
        ids = await desk.write(*TEXTS)
        await reconciling.settle()
        ended = asyncio.Event()

        async def write() -> None:
            n = 0
            while not ended.is_set():
                n += 1
                await desk.edit(ids[n % len(ids)], content=f"changed {n}")
                [extra] = await desk.write(f"extra {n}")
                if n % 2:
                    await desk.remove(extra)

        async def drain() -> None:
            while not ended.is_set():
                await reconciling.drainer.drain(desk.tenant)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(drain())
            for _ in range(3):
                job_id = await reconciling.ask()
                assert (await reconciling.runner.run(desk.tenant, job_id)).ended
                counts = (await reconciling.finish(job_id)).result
                assert {name: counts[name] for name in NONE} == NONE
            ended.set()
        assert await reconciling.is_mended()


class TestALostCollection:
    async def test_all_of_it_is_sent_again_and_searches_do_without_it_until_then(
        self, reconciling: Reconciling
    ) -> None:
        desk = reconciling.desk
        await desk.write(*TEXTS, "word " * 400)
        await reconciling.settle()
        whole = await reconciling.held()
        await reconciling.index.drop(desk.tenant, await desk.generation())
        forecast = await reconciling.run(dry_run=True)
        assert (await desk.generation()).state == "ready"
        found = await reconciling.run()
        assert found == forecast == NONE | {"lost": 1, "missing": len(whole), "requeued": 31}
        assert (await desk.generation()).state == "absent"
        assert await reconciling.is_mended()
        assert await reconciling.held() == whole
        assert (await desk.generation()).state == "ready"

    async def test_a_write_that_comes_first_brings_the_rest_along(self, reconciling: Reconciling) -> None:
        """The collection is made by the drain of one new memory, before anybody has noticed that it was lost."""
        desk = reconciling.desk
        await desk.write(*TEXTS)
        await reconciling.settle()
        await reconciling.index.drop(desk.tenant, await desk.generation())
        await desk.write("the next")
        assert (await reconciling.drainer.drain(desk.tenant)).obstacle == "index"
        queued: list[int] = []
        ensure = reconciling.index.ensure

        async def watched(tenant: TenantId, generation: Generation) -> None:
            queued.append(sum(not row.done for row in await desk.outbox()))
            await ensure(tenant, generation)

        reconciling.index.ensure = watched
        await desk.pass_time()
        assert (await reconciling.drainer.drain(desk.tenant)).indexed == 31
        assert queued == [31]
        assert await reconciling.is_mended()


class TestTenantsAndGenerations:
    async def test_another_tenants_drift_is_its_own(
        self, reconciling: Reconciling, database: Database, embedder: HashEmbedder
    ) -> None:
        other = Reconciling(MemoryDesk(database, await make_tenant(database), embedder), reconciling.index, embedder)
        for one in (reconciling, other):
            await one.desk.write(*TEXTS[:3])
            await one.settle()
            await one.lose(*sorted(await one.held())[:1])
            await one.put(IndexKey(uuid4(), 1, 0))
        assert await reconciling.run() == NONE | {"missing": 1, "stale": 1, "requeued": 1, "removed": 1}
        assert await reconciling.is_mended()
        assert not any(row for row in await other.desk.outbox() if not row.done)
        assert await other.held() != await other.desk.current_keys()

    async def test_each_kept_generation_is_compared_and_none_that_is_being_built(
        self, reconciling: Reconciling
    ) -> None:
        desk = reconciling.desk
        for number, life in ((2, "kept"), (3, "building"), (4, "dropped")):
            await reconciling.sql(
                "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params, life)"
                " SELECT tenant_id, $1, model, dim, index_type, index_params, $2 FROM generation WHERE number = 1",
                number,
                life,
            )
        [memory_id] = await desk.write("one")
        await reconciling.settle()
        first = await desk.generation()
        for number in (1, 2, 3):
            generation = msgspec.structs.replace(first, number=number)
            await reconciling.index.delete(desk.tenant, generation, [IndexKey(memory_id, 1, 0)])
        assert await reconciling.run() == NONE | {"missing": 2, "requeued": 2}
        job = await reconciling.finish(await reconciling.ask())
        assert job.total == 2

    async def test_one_whose_collection_has_vectors_of_another_length_fails_it_once_all_others_are_compared(
        self, reconciling: Reconciling
    ) -> None:
        desk = reconciling.desk
        await reconciling.sql(
            "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params, life)"
            " SELECT tenant_id, 2, model, dim, index_type, index_params, 'kept' FROM generation WHERE number = 1"
        )
        [memory_id] = await desk.write("one")
        await reconciling.settle()
        await reconciling.sql("UPDATE generation SET dim = dim / 2 WHERE number = 1")
        second = msgspec.structs.replace(await desk.generation(), number=2, dim=64)
        await reconciling.index.delete(desk.tenant, second, [IndexKey(memory_id, 1, 0)])
        job_id = await reconciling.ask()
        assert (await reconciling.slice(job_id)).ended == "failed"
        job = await reconciling.job(job_id)
        assert (job.result["missing"], job.result["requeued"]) == (1, 1)
        assert job.error is not None
        assert "_g1' holds vectors of dimension 64" in job.error
        await reconciling.settle()
        assert await reconciling.index.count(desk.tenant, second) == 1

    async def test_nothing_is_queued_for_one_that_is_dropped_meanwhile(
        self, desk: MemoryDesk, embedder: HashEmbedder
    ) -> None:
        index = SteppedIndex(2)
        reconciling = Reconciling(desk, index, embedder)
        await reconciling.sql(
            "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params)"
            " SELECT tenant_id, 2, model, dim, index_type, index_params FROM generation"
        )
        await desk.write("one")
        await reconciling.settle()
        await index.drop(desk.tenant, CollectionName(desk.tenant, 2))
        job_id = await reconciling.ask()
        index.gate.close()
        running = asyncio.create_task(reconciling.slice(job_id))
        await index.gate.reached()
        await reconciling.sql("UPDATE generation SET life = 'dropping' WHERE number = 2")
        index.gate.open()
        assert (await running).ended == "done"
        assert (await reconciling.job(job_id)).result["requeued"] == 0
        assert all(row.done for row in await desk.outbox())

    async def test_a_tenant_without_memories_or_collection_has_no_drift(self, reconciling: Reconciling) -> None:
        assert await reconciling.run() == NONE

"""A new generation beside the one that answers: filled, proved, switched to, gone back from, dropped."""

import asyncio
from uuid import UUID

import msgspec
import pytest
from tests.integration.maintenance.reindexing import Reindexing, TwoModels, Worker

from memplane_core.domain.errors import Conflict
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import ask_cancel
from memplane_core.storage.session import Database, is_contention
from memplane_core.testing.embedder import POISON
from memplane_core.testing.faults import Died, MortalDatabase, MortalIndex, Mortality, SleepyDatabase
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.jobs.job import JobFailed, Run, checkpoint_of
from memplane_maintenance.jobs.reindex import Memo, Reindex

pytestmark = pytest.mark.anyio

TEXTS = [f"note {n} about thing {n % 7}" for n in range(30)]


@pytest.fixture
def reindexing(database: Database, tenant: TenantId) -> Reindexing:
    embedder = TwoModels()
    return Reindexing(MemoryDesk(database, tenant, embedder), MortalIndex(), embedder)


class TestToAnotherModel:
    async def test_every_memory_is_in_the_new_collection_before_it_answers(self, reindexing: Reindexing) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS, "word " * 400, f"some {POISON}")
        await reindexing.settle()
        job = await reindexing.finish(await reindexing.ask())
        assert (job.state, job.error, job.done, job.total) == ("done", None, 32, 32)
        assert job.result == {"generation": 2, "memories": 32, "failed": 1, "sent_again": 0}
        active = await reindexing.active()
        assert (active.number, active.model, active.dim, active.state) == (2, "other", 32, "ready")
        expected = await desk.current_keys(2)
        assert len({key.memory_id for key in expected}) == 31
        assert await reindexing.held(2) == expected

    async def test_the_old_one_is_fed_until_its_grace_ends_and_then_nothing_is_left_of_it(
        self, reindexing: Reindexing
    ) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS)
        await reindexing.finish(await reindexing.ask())
        [late] = await desk.write("written afterwards")
        await desk.edit((await desk.write("to be edited"))[0], content="edited")
        await reindexing.settle()
        for number in (1, 2):
            assert await reindexing.held(number) == await desk.current_keys(number)
            assert late in {key.memory_id for key in await reindexing.held(number)}
        assert (await reindexing.worker.retirement.run(desk.tenant)).dropped == 0
        await reindexing.end_grace()
        assert (await reindexing.worker.retirement.run(desk.tenant)).dropped == 1
        assert (await reindexing.life(1)).life == "dropped"
        assert await reindexing.rows_of(1) == (0, 0)
        assert await reindexing.index.count(desk.tenant, (await reindexing.life(1)).generation) == 0
        await desk.write("for one generation alone")
        assert await reindexing.rows_of(1) == (0, 0)
        assert await reindexing.held(2) < await desk.current_keys(2)

    async def test_writes_and_edits_under_way_are_never_without_vectors_in_what_answers(
        self, reindexing: Reindexing
    ) -> None:
        desk = reindexing.desk
        ids = await desk.write(*TEXTS)
        await reindexing.settle()
        job_id = await reindexing.ask()
        ended = asyncio.Event()
        blind: list[UUID] = []

        async def write() -> None:
            n = 0
            while not ended.is_set():
                n += 1
                try:
                    if n % 3:
                        [written] = await desk.write(f"meanwhile {n}")
                    else:
                        written = ids[n % len(ids)]
                        await desk.edit(written, content=f"changed {n}")
                except Exception as error:
                    if not is_contention(error):
                        raise
                    continue
                async with desk.database.tenant(desk.tenant) as connection:
                    seen = await connection.fetchval(
                        """
                        SELECT count(c.embedding) FROM memory m JOIN tenant t ON t.id = m.tenant_id
                        JOIN chunk c ON c.memory_id = m.id AND c.rev = m.rev AND c.generation = t.active_generation
                        WHERE m.id = $1
                        """,
                        written,
                    )
                if not seen:
                    blind.append(written)
                await asyncio.sleep(0.002)

        async def drain() -> None:
            while not ended.is_set():
                await reindexing.worker.drainer.drain(desk.tenant)
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(drain())
            for _ in range(100):
                if (await reindexing.worker.runner.run(desk.tenant, job_id)).ended:
                    break
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)
            ended.set()
        assert (await reindexing.job(job_id)).state == "done"
        assert blind == []
        await reindexing.settle()
        assert await reindexing.held(2) == await desk.current_keys(2)
        assert await reindexing.held(1) == await desk.current_keys(1)

    async def test_what_a_new_model_refuses_in_numbers_stops_it_and_the_old_one_stays(
        self, reindexing: Reindexing
    ) -> None:
        await reindexing.desk.write(*TEXTS)
        reindexing.embedder.refuses = "note"
        job = await reindexing.finish(await reindexing.ask())
        assert (job.state, (await reindexing.active()).number) == ("failed", 1)
        assert job.error is not None
        assert "30 memories cannot be indexed that way" in job.error
        assert (await reindexing.life(2)).life == "dropping"

    async def test_somebody_elses_collection_of_its_name_stops_it_and_the_next_takes_another_number(
        self, reindexing: Reindexing
    ) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS[:3])
        taken = msgspec.structs.replace(await desk.generation(), number=2, dim=8)
        await reindexing.index.ensure(desk.tenant, taken)
        job = await reindexing.finish(await reindexing.ask())
        assert (job.state, (await reindexing.active()).number) == ("failed", 1)
        assert job.error is not None
        assert "_g2' holds vectors of dimension 8" in job.error
        assert (await reindexing.finish(await reindexing.ask())).result["generation"] == 3

    async def test_rows_that_the_index_lost_are_sent_again_before_it_answers(self, reindexing: Reindexing) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS)
        job_id = await reindexing.ask()
        lossy = Worker(desk.database, reindexing.index, reindexing.embedder)
        lossy.runner._slice_s = 0  # pyright: ignore[reportPrivateUsage] - one step at a time
        while (await reindexing.job(job_id)).checkpoint.get("phase") != "prove":
            await reindexing.slice(job_id, lossy)
        lost = sorted(await reindexing.held(2))[:5]
        await reindexing.index.delete(desk.tenant, (await reindexing.life(2)).generation, lost)
        job = await reindexing.finish(job_id)
        assert (job.state, job.result["sent_again"]) == ("done", 5)
        assert await reindexing.held(2) == await desk.current_keys(2)


class TestToTheSameModel:
    async def test_vectors_are_taken_over_and_no_embedder_is_needed(self, reindexing: Reindexing) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS, "word " * 400)
        await reindexing.settle()
        before = reindexing.embedder.calls
        job_id = await reindexing.ask(model="hash", dim=64, index_type="IVF_FLAT", index_params={"nlist": 8})
        await desk.write("while it waits")
        reindexing.embedder.down = True
        job = await reindexing.finish(job_id)
        assert job.state == "done", job
        assert reindexing.embedder.calls["hash"] == before["hash"] + 1
        active = await reindexing.active()
        assert (active.number, active.index_type, active.index_params) == (2, "IVF_FLAT", {"nlist": 8})
        assert await reindexing.held(2) == await desk.current_keys(2)
        keys = {(key.memory_id, key.rev, key.n) for key in await desk.current_keys(1)}
        assert keys == {(key.memory_id, key.rev, key.n) for key in await desk.current_keys(2)}

    async def test_asked_to_embed_again_it_does(self, reindexing: Reindexing) -> None:
        await reindexing.desk.write(*TEXTS)
        before = reindexing.embedder.calls["hash"]
        await reindexing.finish(await reindexing.ask(model="hash", dim=64, reembed=True))
        assert reindexing.embedder.calls["hash"] == before + len(TEXTS)

    async def test_a_lost_index_answers_again(self, reindexing: Reindexing) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS)
        await reindexing.settle()
        await reindexing.index.drop(desk.tenant, await reindexing.active())
        job = await reindexing.finish(await reindexing.ask(model="hash", dim=64))
        assert job.state == "done"
        assert len(await reindexing.held(2)) == len(TEXTS)


class TestBeforeItRuns:
    async def test_a_dry_run_tells_what_it_would_do_and_does_nothing(self, reindexing: Reindexing) -> None:
        await reindexing.desk.write(*TEXTS)
        other = await reindexing.finish(await reindexing.ask(dry_run=True))
        same = await reindexing.finish(await reindexing.ask(dry_run=True, model="hash", dim=64))
        assert other.result == {"memories": 30, "to_embed": 30, "to_take_over": 0}
        assert same.result == {"memories": 30, "to_embed": 0, "to_take_over": 30}
        assert (await reindexing.active()).number == 1

    async def test_a_second_one_is_refused_until_the_first_has_ended(self, reindexing: Reindexing) -> None:
        first = await reindexing.ask()
        with pytest.raises(Conflict) as refused:
            await reindexing.ask()
        assert refused.value.extra["id"] == first
        await reindexing.finish(first)
        await reindexing.ask()

    async def test_a_tenant_without_memories_is_switched_at_once(self, reindexing: Reindexing) -> None:
        job = await reindexing.finish(await reindexing.ask())
        assert (job.state, (await reindexing.active()).number, (await reindexing.active()).state) == (
            "done",
            2,
            "absent",
        )

    async def test_a_write_under_way_is_waited_for_and_not_lost(self, reindexing: Reindexing) -> None:
        desk = reindexing.desk
        job_id = await reindexing.ask()
        async with desk.transaction("under way"):
            assert (await reindexing.slice(job_id)).ended is None
            held_up = await reindexing.job(job_id)
            assert (held_up.error, held_up.checkpoint) == ("others were in the way", {})
        assert (await reindexing.finish(job_id)).state == "done"
        await reindexing.settle()
        assert len(await reindexing.held(2)) == 1

    async def test_a_write_prepared_for_the_generation_before_is_undone_to_be_prepared_again(
        self, reindexing: Reindexing
    ) -> None:
        desk = reindexing.desk
        job_id = await reindexing.ask()
        started, before = await desk.generation(), desk.generation
        await reindexing.finish(job_id)

        async def stale() -> Generation:
            return started

        desk.generation = stale
        with pytest.raises(Exception, match="another generation is active") as undone:
            await desk.write("too late")
        assert is_contention(undone.value)
        desk.generation = before
        await desk.write("in time")
        await reindexing.settle()
        assert len(await reindexing.held(2)) == 1


class TestEnding:
    async def test_cancelled_midway_nothing_of_it_stays_and_the_next_takes_another_number(
        self, reindexing: Reindexing
    ) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS)
        job_id = await reindexing.ask()
        reindexing.embedder.down = True
        assert (await reindexing.slice(job_id)).ended is None
        held_up = await reindexing.job(job_id)
        assert held_up.error is not None
        assert "embedding" in held_up.error
        assert (await reindexing.life(2)).life == "building"
        async with desk.database.tenant(desk.tenant) as connection:
            await ask_cancel(desk.tenant, connection, job_id)
        assert (await reindexing.finish(job_id)).state == "cancelled"
        reindexing.embedder.down = False
        await desk.write("not for it")
        assert (await reindexing.worker.retirement.run(desk.tenant)).dropped == 1
        assert await reindexing.rows_of(2) == (0, 0)
        assert (await reindexing.finish(await reindexing.ask())).result["generation"] == 3

    async def test_a_worker_that_slept_through_the_end_of_its_run_queues_nothing_for_what_was_dropped(
        self, reindexing: Reindexing
    ) -> None:
        desk = reindexing.desk
        await desk.write(*TEXTS)
        job_id = await reindexing.ask()
        reindexing.embedder.down = True
        await reindexing.slice(job_id)
        record = msgspec.structs.replace(
            await reindexing.job(job_id), checkpoint=checkpoint_of(Memo(phase="fill", generation=2))
        )

        async def end() -> None:
            async with desk.database.tenant(desk.tenant) as connection:
                await ask_cancel(desk.tenant, connection, job_id)
            assert (await reindexing.finish(job_id)).state == "cancelled"
            assert (await reindexing.worker.retirement.run(desk.tenant)).dropped == 1

        # It has read its generation, and is about to queue.
        asleep = Reindex(
            SleepyDatabase(desk.database, end, before=2), reindexing.index, reindexing.worker.drainer.drain
        )
        with pytest.raises(JobFailed, match="was dropped"):
            await asleep.step(Run(desk.tenant, record))
        assert await reindexing.rows_of(2) == (0, 0)

    async def test_cancelled_before_anybody_took_it_it_ends_at_once(self, reindexing: Reindexing) -> None:
        job_id = await reindexing.ask()
        async with reindexing.desk.database.tenant(reindexing.desk.tenant) as connection:
            cancelled = await ask_cancel(reindexing.desk.tenant, connection, job_id)
        assert cancelled is not None
        assert cancelled.state == "cancelled"
        assert not (await reindexing.slice(job_id)).taken


class TestGoingBack:
    async def test_the_old_generation_answers_with_all_that_was_written_since(self, reindexing: Reindexing) -> None:
        desk = reindexing.desk
        ids = await desk.write(*TEXTS)
        await reindexing.finish(await reindexing.ask())
        await desk.write("since then")
        await desk.edit(ids[0], content="changed since then")
        await desk.remove(ids[1])
        job = await reindexing.finish(await reindexing.ask(to_generation=1))
        assert job.state == "done", job
        assert (await reindexing.active()).number == 1
        assert ((await reindexing.life(1)).drop_at is None, (await reindexing.life(2)).drop_at is None) == (True, False)
        await desk.pass_time()
        await reindexing.settle()
        assert await reindexing.held(1) == await desk.current_keys(1)
        assert len(await reindexing.held(1)) == 30

    async def test_to_one_that_is_gone_it_fails(self, reindexing: Reindexing) -> None:
        await reindexing.finish(await reindexing.ask())
        await reindexing.end_grace()
        await reindexing.worker.retirement.run(reindexing.desk.tenant)
        job = await reindexing.finish(await reindexing.ask(to_generation=1))
        assert (job.state, job.error) == ("failed", "generation 1 is not kept any more")
        assert (await reindexing.active()).number == 2


class TestDeath:
    async def test_at_any_moment_the_next_worker_goes_on_and_nothing_is_lost(
        self, reindexing: Reindexing, database: Database
    ) -> None:
        """Each round: a reindex whose worker dies three moments later than the last, writes, and one that goes on."""
        desk = reindexing.desk
        index = reindexing.index
        assert isinstance(index, MortalIndex)
        kept = await desk.write("a", "b", "word " * 100)
        dies_at, models = 0, (("other", 32), ("hash", 64))
        while True:
            dies_at += 3
            model, dim = models[dies_at % 2]
            job_id = await reindexing.ask(model=model, dim=dim)
            mortality = Mortality(dies_at)
            index.mortality = mortality
            worker = Worker(MortalDatabase(database, mortality), index, reindexing.embedder)
            survived = False
            try:
                for _ in range(10):
                    await desk.pass_time()
                    if (await worker.runner.run(desk.tenant, job_id)).ended:
                        survived = True
                        break
            except* Died:
                pass
            index.mortality = Mortality(None)
            [new] = await desk.write(f"written in round {dies_at}")
            await desk.edit(kept[dies_at % 3], content=f"changed in round {dies_at}")
            await desk.remove(new) if dies_at % 2 else None
            job = await reindexing.finish(job_id)
            assert job.state == "done", (dies_at, job)
            active = await reindexing.active()
            assert (active.number, active.model) == (dies_at // 3 + 1, model)
            await reindexing.settle()
            assert await reindexing.held(active.number) == await desk.current_keys(active.number), dies_at
            await reindexing.end_grace()
            await reindexing.worker.retirement.run(desk.tenant)
            if survived:
                break
        assert dies_at > 30

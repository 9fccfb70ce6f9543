"""A reconcile whose worker dies, and one that another goes on with."""

from uuid import uuid4

import pytest
from tests.integration.maintenance.reconciling import Reconciling

from memplane_core.domain.index import IndexKey
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.faults import Died, MortalDatabase, MortalIndex, Mortality
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.reconcile import Reconcile

pytestmark = pytest.mark.anyio

TEXTS = [f"note {n} about thing {n % 7}" for n in range(30)]


@pytest.fixture
def reconciling(desk: MemoryDesk, embedder: HashEmbedder) -> Reconciling:
    return Reconciling(desk, MortalIndex(), embedder)


class TestDeath:
    async def test_at_any_moment_the_next_worker_goes_on(
        self, reconciling: Reconciling, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each round: drift of every kind, a run whose worker dies a moment later than the last, one that goes on."""
        monkeypatch.setattr("memplane_maintenance.jobs.reconcile._MEMORIES", 3)
        monkeypatch.setattr("memplane_maintenance.jobs.reconcile._KEYS", 4)
        monkeypatch.setattr("memplane_maintenance.jobs.reconcile._STEP_S", 0)
        desk, index = reconciling.desk, reconciling.index
        assert isinstance(index, MortalIndex)
        ids = await desk.write(*TEXTS[:7])
        await reconciling.settle()
        dies_at, survived = 0, False
        while not survived:
            dies_at += 4
            await reconciling.lose(IndexKey(ids[0], 1, 0), IndexKey(ids[5], 1, 0))
            await reconciling.put(IndexKey(uuid4(), 1, 0), IndexKey(ids[3], 9, 0))
            await reconciling.sql("DELETE FROM memory_words WHERE memory_id = $1", ids[4])
            job_id = await reconciling.ask()
            index.mortality = mortality = Mortality(dies_at)
            dying = JobRunner(
                MortalDatabase(database, mortality),
                {"reconcile": Reconcile(MortalDatabase(database, mortality), index)},
            )
            try:
                for _ in range(10):
                    if (await reconciling.slice(job_id, dying)).ended:
                        survived = True
                        break
            except* Died:
                pass
            index.mortality = Mortality(None)
            result = (await reconciling.finish(job_id)).result
            assert (result["missing"], result["stale"], result["wordless"]) == (2, 2, 1), dies_at
            assert await reconciling.is_mended(), dies_at
            async with database.tenant(desk.tenant) as connection:
                assert await connection.fetchval("SELECT count(*) FROM memory_words") == len(ids)
        assert dies_at > 40

    async def test_it_goes_on_where_it_was(self, reconciling: Reconciling, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("memplane_maintenance.jobs.reconcile._MEMORIES", 10)
        monkeypatch.setattr("memplane_maintenance.jobs.reconcile._STEP_S", 0)
        monkeypatch.setattr(reconciling.runner, "_slice_s", 0)
        await reconciling.desk.write(*TEXTS)
        await reconciling.settle()
        job_id, done = await reconciling.ask(), list[int]()
        while not (await reconciling.slice(job_id)).ended:
            done.append((await reconciling.job(job_id)).done)
        assert sorted(set(done)) == [0, 10, 20, 30]
        # Each chunk from one side and from the other.
        assert (await reconciling.job(job_id)).result["checked"] == 60

"""Reconciles over a real Milvus Lite."""

from collections.abc import AsyncGenerator, Generator
from uuid import uuid4

import pytest
from tests.integration.maintenance.reconciling import NONE, Reconciling

from memplane_core.domain.index import IndexKey
from memplane_core.settings import MilvusSettings
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.vectors import MilvusIndex

pytestmark = pytest.mark.anyio


@pytest.fixture
def milvus() -> Generator[MilvusLite]:
    with MilvusLite() as server:
        yield server


@pytest.fixture
async def reconciling(desk: MemoryDesk, embedder: HashEmbedder, milvus: MilvusLite) -> AsyncGenerator[Reconciling]:
    index = MilvusIndex(MilvusSettings(uri=milvus.uri))
    yield Reconciling(desk, index, embedder)
    await index.close()


async def test_rows_lost_and_rows_too_many_are_mended_page_by_page(
    reconciling: Reconciling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplane_maintenance.jobs.reconcile._MEMORIES", 50)
    monkeypatch.setattr("memplane_maintenance.jobs.reconcile._KEYS", 64)
    ids = await reconciling.desk.write(*(f"note {n}" for n in range(130)))
    await reconciling.settle()
    await reconciling.lose(*(IndexKey(memory_id, 1, 0) for memory_id in ids[::13]))
    await reconciling.put(IndexKey(uuid4(), 1, 0), IndexKey(uuid4(), 3, 1), IndexKey(ids[1], 2, 0))
    forecast = await reconciling.run(dry_run=True)
    assert await reconciling.run() == forecast == NONE | {"missing": 10, "requeued": 10, "stale": 3, "removed": 3}
    assert await reconciling.is_mended()
    assert await reconciling.run() == NONE


async def test_after_everything_was_lost_one_write_brings_all_of_it_back(
    reconciling: Reconciling, milvus: MilvusLite
) -> None:
    """The same client goes on, with what it remembers of collections that are gone."""
    await reconciling.desk.write(*(f"note {n}" for n in range(130)))
    await reconciling.settle()
    milvus.stop()
    milvus.wipe()
    milvus.start()
    await reconciling.desk.write("the next")
    assert await reconciling.is_mended()
    assert len(await reconciling.held()) == 131

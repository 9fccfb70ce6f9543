"""A tenant whose embedder serves two models, and a reindex of it, step by step."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from memplane_core.contracts.job_runs import ReindexParams
from memplane_core.domain.embedding import EmbedItem, Lane, ModelProfile, ModelProfiles
from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.index import FloatArray, Generation, IndexKey
from memplane_core.domain.ports import EmbeddedText
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.generations import GenerationLife, generation_lives
from memplane_core.storage.jobs import JobRecord, create_job, get_job
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.jobs import JobRunner, RunReport, all_jobs
from memplane_maintenance.retirement import Retirement

LIMITS = DrainLimits(lease_s=30, fresh_s=0.0)


class TwoModels:
    """An embedder of `hash` with 64 numbers and of `other` with 32.

    Attributes:
        down: While True every call raises EmbeddingUnavailable.
        refuses: Words of which `other` can embed no text.
    """

    def __init__(self) -> None:
        self.down = False
        self.refuses = ""
        self._models = {"hash": HashEmbedder(window=200), "other": HashEmbedder(dim=32, window=100, models=("other",))}

    @property
    def calls(self) -> dict[str, int]:
        """Texts embedded so far, by model."""
        return {name: model.calls for name, model in self._models.items()}

    async def embed_query(self, tenant: TenantId, text: str, *, model: str, timeout_s: float) -> FloatArray:
        return await self._of(model).embed_query(tenant, text, model=model, timeout_s=timeout_s)

    async def embed_passages(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, model: str, lane: Lane, timeout_s: float
    ) -> list[EmbeddedText]:
        found = await self._of(model).embed_passages(tenant, items, model=model, lane=lane, timeout_s=timeout_s)
        nothing = EmbeddedText([], np.empty((0, 0), np.float32), "is refused, as the test asked for")
        refused = model == "other" and self.refuses
        return [
            nothing if refused and self.refuses in item.text else result
            for item, result in zip(items, found, strict=True)
        ]

    async def profiles(self) -> ModelProfiles:
        models = [profile for model in self._models.values() for profile in (await model.profiles()).models]
        return ModelProfiles(default="hash", models=models)

    async def profile(self, model: str) -> ModelProfile:
        return await self._of(model).profile(model)

    def _of(self, model: str) -> HashEmbedder:
        if self.down:
            raise EmbeddingUnavailable("the embedder is switched off", retry_after=1)
        return self._models[model]


class Worker:
    """What a worker process does about jobs, over a database and an index that may be given to fail."""

    def __init__(self, database: Database, index: MemoryIndex, embedder: TwoModels) -> None:
        self.drainer = Drainer(database, index, embedder, limits=LIMITS)
        self.runner = JobRunner(database, all_jobs(database, index, self.drainer.drain))
        self.retirement = Retirement(database, index)


class Reindexing:
    """A tenant, and one healthy worker."""

    def __init__(self, desk: MemoryDesk, index: MemoryIndex, embedder: TwoModels) -> None:
        self.desk = desk
        self.index = index
        self.embedder = embedder
        self.worker = Worker(desk.database, index, embedder)

    async def ask(self, *, dry_run: bool = False, **params: Any) -> UUID:
        """Queue a reindex: to `other`, unless told otherwise."""
        given: dict[str, Any] = {
            "model": "other",
            "dim": 32,
            "index_type": "HNSW",
            "index_params": {"M": 16, "efConstruction": 200},
            "reembed": False,
            "to_generation": None,
            "grace_s": 60,
        }
        stored = msgspec.to_builtins(ReindexParams(**{**given, **params}))
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            job = await create_job(
                self.desk.tenant, connection, kind="reindex", params=stored, dry_run=dry_run, started_by="test"
            )
        return job.id

    async def job(self, job_id: UUID) -> JobRecord:
        """The run as it is."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            found = await get_job(self.desk.tenant, connection, job_id)
        assert found is not None
        return found

    async def slice(self, job_id: UUID, worker: Worker | None = None) -> RunReport:
        """One slice of the job, as if its time had come."""
        await self.pass_time()
        return await (worker or self.worker).runner.run(self.desk.tenant, job_id)

    async def finish(self, job_id: UUID) -> JobRecord:
        """Slices until it has ended."""
        for _ in range(40):
            if (await self.slice(job_id)).ended:
                break
        return await self.job(job_id)

    async def settle(self) -> None:
        """Drain until nothing is left to do in any generation."""
        for _ in range(20):
            await self.pass_time()
            await self.worker.drainer.drain(self.desk.tenant)
            if all(row.done or row.error for row in await self.desk.outbox()):
                return
        raise AssertionError(await self.desk.outbox())

    async def pass_time(self) -> None:
        """Make everything due that waits for its time, and let leases end."""
        await self.desk.pass_time()
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            await connection.execute("UPDATE job SET not_before = clock_timestamp()")

    async def end_grace(self) -> None:
        """Let the time of every generation that is kept be over."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            await connection.execute("UPDATE generation SET drop_at = clock_timestamp() WHERE drop_at IS NOT NULL")

    async def life(self, number: int) -> GenerationLife:
        """A generation by its number."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            lives = await generation_lives(self.desk.tenant, connection)
        return next(life for life in lives if life.generation.number == number)

    async def active(self) -> Generation:
        """The generation that answers."""
        return await self.desk.generation()

    async def held(self, number: int) -> set[IndexKey]:
        """What the index holds in a generation's collection."""
        generation = (await self.life(number)).generation
        return set((await self.index.keys_after(self.desk.tenant, generation, limit=16_383)).keys)

    async def rows_of(self, number: int) -> tuple[int, int]:
        """Chunks and outbox rows of a generation."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            row = await connection.fetchrow(
                """
                SELECT (SELECT count(*) FROM chunk WHERE generation = $1) AS chunks,
                       (SELECT count(*) FROM outbox WHERE generation = $1) AS outbox
                """,
                number,
            )
        assert row is not None
        return row["chunks"], row["outbox"]

"""A tenant whose memories are merged, step by step, and everything that is known of them before and after."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from memplane_core.contracts.job_runs import MergeParams
from memplane_core.domain.index import IndexKey
from memplane_core.domain.memory import Memory
from memplane_core.domain.ports import VectorIndex
from memplane_core.storage import memories, merges
from memplane_core.storage.jobs import JobRecord, create_job, get_job
from memplane_core.storage.markers import Author
from memplane_core.storage.merges import Joining
from memplane_core.storage.session import Connection, Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.jobs import JobRunner, RunReport, all_jobs

BY = Author("a-key", "a-request")

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)

SENTENCE = (
    "The customer drinks green tea without any sugar every single morning before she walks to her work at the harbour"
    " office, and she asked us to remember this"
)


def copies(count: int, text: str = SENTENCE) -> list[str]:
    """So many different texts that say the same: other cases, fillers and marks."""
    heads = ("", "So, ", "Well, ", "Ok, ", "Oh, ", "Please: ", "Also, ", "Really: ")
    tails = (".", "!", "...", " ;)", "", "!!", ",", " -")
    words = text.split()
    made: dict[str, None] = {}
    for n in range(count):
        case = [word.upper() if n // 64 >> place & 1 else word for place, word in enumerate(words)]
        made[heads[n % 8] + " ".join(case) + tails[n // 8 % 8]] = None
    assert len(made) == count
    return list(made)


class Merging:
    """A tenant, its index, and a worker."""

    def __init__(self, desk: MemoryDesk, index: VectorIndex, embedder: HashEmbedder) -> None:
        self.desk = desk
        self.index = index
        self.embedder = embedder
        self.drainer = Drainer(desk.database, index, embedder, limits=DrainLimits(fresh_s=0.0))
        self.runner = self.runner_over(desk.database)

    def runner_over(self, database: Database) -> JobRunner:
        """A worker that sees the database in its own way."""
        return JobRunner(database, all_jobs(database, self.index, self.drainer.drain, profile=self.embedder.profile))

    async def write(self, *texts: str, embedded: bool = True, **fields: Any) -> list[UUID]:
        """Write memories whose vectors do not depend on the minute at which the test runs."""
        return await self.desk.write(*texts, embedded=embedded, **{"occurred_at": AT, **fields})

    async def ask(self, *, dry_run: bool = False, **params: Any) -> UUID:
        """Queue a run."""
        stored = msgspec.to_builtins(MergeParams(**params))
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            job = await create_job(
                self.desk.tenant, connection, kind="merge", params=stored, dry_run=dry_run, started_by="a-key"
            )
        return job.id

    async def slice(self, job_id: UUID, runner: JobRunner | None = None) -> RunReport:
        """One slice of it, as if its time had come."""
        await self.desk.pass_time()
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            await connection.execute("UPDATE job SET not_before = clock_timestamp()")
        return await (runner or self.runner).run(self.desk.tenant, job_id)

    async def job(self, job_id: UUID) -> JobRecord:
        """The run as it is."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            job = await get_job(self.desk.tenant, connection, job_id)
        assert job is not None
        return job

    async def finish(self, job_id: UUID) -> JobRecord:
        """Slices until it has ended."""
        for _ in range(30):
            if (await self.slice(job_id)).ended:
                break
        job = await self.job(job_id)
        assert job.state == "done", job
        return job

    async def run(self, *, dry_run: bool = False, **params: Any) -> dict[str, int]:
        """A whole run over what the index knows; what it counted."""
        await self.settle()
        return (await self.finish(await self.ask(dry_run=dry_run, **params))).result

    async def settle(self) -> None:
        """Drain until nothing is left to do."""
        for _ in range(60):
            await self.desk.pass_time()
            await self.drainer.drain(self.desk.tenant)
            if all(row.done or row.error for row in await self.desk.outbox()):
                return
        raise AssertionError(await self.desk.outbox())

    async def held(self) -> set[IndexKey]:
        """What the index holds."""
        return set((await self.index.keys_after(self.desk.tenant, await self.desk.generation(), limit=16_383)).keys)

    async def memories(self, ids: Collection[UUID]) -> dict[UUID, Memory]:
        """These memories, in whatever state."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            return await memories.read(self.desk.tenant, connection, list(ids), also_expired=True)

    async def groups(self, ids: Collection[UUID]) -> list[set[UUID]]:
        """What stands together: each active memory with those that were merged into it."""
        found: dict[UUID, set[UUID]] = {}
        for memory in (await self.memories(ids)).values():
            found.setdefault(memory.merged_into or memory.id, set()).add(memory.id)
        return sorted(found.values(), key=min)

    async def restore(self, *ids: UUID) -> list[UUID]:
        """Take merges back."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            return await merges.restore(self.desk.tenant, connection, ids, author=BY)

    async def merge(self, survivor: UUID, *others: UUID) -> None:
        """Merge by hand."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            await self.merge_in(connection, survivor, *others)

    async def merge_in(self, connection: Connection, survivor: UUID, *others: UUID) -> None:
        """Merge by hand in a transaction."""
        locked = await merges.lock(self.desk.tenant, connection, [survivor, *others])
        purge_at = await connection.fetchval("SELECT clock_timestamp() + interval '30 days'")
        joining = Joining(survivor=locked[survivor], others=[locked[other] for other in others])
        await merges.merge(self.desk.tenant, connection, [joining], purge_at=purge_at, author=BY)

    async def sql(self, statement: str, *args: object) -> Any:
        """Something that no service does in this way, and the first value that it gives."""
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            return await connection.fetchval(statement, *args)

    async def everything(self) -> Mapping[str, list[str]]:
        """All rows of the tenant that tell of its memories as they are, but for what grows with every change."""
        queries = {
            "memory": "SELECT (to_jsonb(t) - 'version' - 'updated_at' - 'rev')::text AS row FROM memory t",
            "usage": "SELECT to_jsonb(t)::text AS row FROM memory_usage t",
            "scene": "SELECT to_jsonb(t)::text AS row FROM memory_scene t",
            "words": "SELECT t::text AS row FROM memory_words t",
            "chunk": "SELECT (to_jsonb(t) - 'rev')::text AS row FROM chunk t",
        }
        async with self.desk.database.tenant(self.desk.tenant) as connection:
            return {
                name: sorted(row["row"] for row in await connection.fetch(query)) for name, query in queries.items()
            }

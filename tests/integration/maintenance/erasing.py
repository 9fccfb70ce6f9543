"""A tenant with memories of several people, and erasures of it, slice by slice."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from memplane_core.domain.index import IndexKey
from memplane_core.domain.observations import Observation
from memplane_core.storage import erasures
from memplane_core.storage.erasures import Begun, ErasureRecord, Subject
from memplane_core.storage.markers import Author, hide
from memplane_core.storage.observations import StoredObservation, save, seq_of
from memplane_core.storage.session import Row
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.erase import Erase
from memplane_maintenance.jobs.erase_copies import Copies
from memplane_maintenance.jobs.erase_tenant import EraseTenant


class Erasing:
    """A tenant, its index, and a worker that erases without waiting for anybody's clock."""

    def __init__(self, desk: MemoryDesk, index: MemoryIndex, embedder: HashEmbedder, *, copies: Copies) -> None:
        self.desk = desk
        self.database = desk.database
        self.tenant = desk.tenant
        self.index = index
        self.copies = copies
        self.drainer = Drainer(desk.database, index, embedder, limits=DrainLimits(fresh_s=0.0))
        self.runner = self.worker()

    def worker(self, *, slice_s: float = 60.0, index: MemoryIndex | None = None) -> JobRunner:
        """Another one; with `slice_s=0` it stops after each step."""
        used = index or self.index
        jobs = {
            "erase": Erase(self.database, used, copies=self.copies, rpc_timeout_s=1.0, settle_s=0.0),
            "erase_tenant": EraseTenant(
                self.database, used, copies=self.copies, rpc_timeout_s=0.0, settle_s=0.0, again_s=0.0
            ),
        }
        return JobRunner(self.database, jobs, slice_s=slice_s)

    async def ask(self, **who: str) -> Begun:
        """Ask for an erasure, as the gateway does."""
        async with self.database.tenant(self.tenant) as connection:
            return await erasures.begin(
                self.tenant, connection, Subject(**who), subject=f"mark of {len(str(who))}", started_by="test"
            )

    async def slice(self, worker: JobRunner | None = None, *, kind: str = "erase", leases_end: bool = True) -> None:
        """A slice of the run, as if its time had come and, unless told otherwise, all other workers had died."""
        async with self.database.tenant(self.tenant) as connection:
            await connection.execute("UPDATE job SET not_before = clock_timestamp()")
            await connection.execute("UPDATE erasure SET not_before = clock_timestamp()")
            if leases_end:
                await connection.execute("UPDATE lease SET expires_at = clock_timestamp()")
            job = await connection.fetchval(
                "SELECT id FROM job WHERE kind = $1 AND state IN ('queued', 'running')", kind
            )
        if job is not None:
            await (worker or self.runner).run(self.tenant, UUID(int=job.int))

    async def finish(self, erasure_id: UUID, worker: JobRunner | None = None) -> ErasureRecord:
        """Slices until it has ended."""
        for _ in range(60):
            await self.slice(worker)
            found = await self.erasure(erasure_id)
            if found.state != "running":
                return found
        raise AssertionError(await self.erasure(erasure_id))

    async def erasure(self, erasure_id: UUID) -> ErasureRecord:
        """It as it is."""
        async with self.database.tenant(self.tenant) as connection:
            found = await erasures.get_erasure(self.tenant, connection, erasure_id)
        assert found is not None
        return found

    async def settle(self) -> None:
        """Drain until nothing is left to do."""
        for _ in range(20):
            await self.desk.pass_time()
            await self.drainer.drain(self.tenant)
            if all(row.done or row.error for row in await self.desk.outbox()):
                return
        raise AssertionError(await self.desk.outbox())

    async def held(self) -> set[IndexKey]:
        """What the index holds."""
        return set((await self.index.keys_after(self.tenant, await self.desk.generation(), limit=16_383)).keys)

    async def sql(self, statement: str, *args: object) -> list[Row]:
        """Do something in a transaction of the tenant."""
        async with self.database.tenant(self.tenant) as connection:
            return await connection.fetch(statement, *args)

    async def observe(self, text: str, *, user_id: str | None) -> UUID:
        """Let a session of a user hold an observation, with `text` in every field that may have it."""
        now = datetime.now(UTC)
        observation = Observation(
            id=uuid7(),
            content=text,
            actor=text,
            scene=[text],
            source=text,
            memory_type="sight",
            user_id=user_id,
            agent_id=None,
            session_id=text,
            importance=0.5,
            metadata={"of": text},
            occurred_at=now,
            observed_at=now,
            strengthened=0,
        )
        stored = StoredObservation(
            observation=observation, seq=seq_of(now), occurred_given=False, unscored=False, generation=None, chunks=[]
        )
        async with self.database.tenant(self.tenant) as connection:
            await save(self.tenant, connection, came=[stored])
        return observation.id

    async def owners(self) -> set[str | None]:
        """Users that memories of the tenant, in whatever state, belong to."""
        return {row["user_id"] for row in await self.sql("SELECT DISTINCT user_id FROM memory")}


async def reflected(erasing: Erasing, user: str) -> None:
    """Keep how far the reflection upon a user's memories has come."""
    await erasing.sql(
        "INSERT INTO reflection (tenant_id, user_id, seen_at, seen_id) VALUES ($1, $2, now(), $3)",
        *(erasing.tenant, user, uuid4()),
    )


async def forget(erasing: Erasing, memory_id: UUID) -> None:
    """Hide a memory."""
    async with erasing.database.tenant(erasing.tenant) as connection:
        await hide(
            erasing.tenant,
            connection,
            [memory_id],
            state="forgotten",
            purge_at=None,
            author=Author("key", "request"),
        )


async def everywhere(connection: Any, text: str) -> dict[str, int]:
    """Rows of any table of any schema in which `text` stands, by table; `connection` is a superuser's."""
    tables = await connection.fetch(
        """
        SELECT format('%I.%I', n.nspname, c.relname) AS name
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
        """
    )
    found: dict[str, int] = {}
    for table in tables:
        name = table["name"]
        count = await connection.fetchval(f"SELECT count(*) FROM {name} t WHERE position($1 IN t::text) > 0", text)
        if count:
            found[name] = count
    return found

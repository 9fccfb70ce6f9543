"""Workers that die, that are told to end, and that one job keeps busy while others wait."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from tests.integration.maintenance.keeping import Keeping

from memplane_core.contracts.maintenance_runs import MaintenanceKind
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import ask_cancel, jobs_due
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.faults import Died, MortalDatabase, Mortality, SleepyDatabase
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

START: Final = datetime(2020, 1, 1, tzinfo=UTC)
KINDS: Final[tuple[MaintenanceKind, ...]] = ("priorities", "prune", "expire", "purge")


async def stocked(keeping: Keeping) -> list[UUID]:
    """Seven memories for each kind of job to deal with, and three that all of them leave alone."""
    ids = await keeping.write(*(f"idle {n}" for n in range(7)), priority=2, expires_at=None)
    await keeping.write("one", "two", "three", pinned=True)
    return ids


async def ripened(keeping: Keeping, kind: MaintenanceKind, ids: list[UUID]) -> None:
    """Let their time come."""
    if kind == "expire":
        await keeping.sql("UPDATE memory SET expires_at = $2 WHERE id = ANY($1)", ids, keeping.now)
    keeping.pass_time(days=366)
    if kind == "purge":
        await keeping.run("prune")
        keeping.pass_time(days=31)


async def outcome(keeping: Keeping, ids: list[UUID]) -> Any:
    """All that a run can have changed, in a form that is the same for equal effects on other memories."""
    places = {memory_id: n for n, memory_id in enumerate(ids)}
    async with keeping.database.tenant(keeping.tenant) as connection:
        rows = await connection.fetch(
            """
            SELECT m.id, m.state, m.version, m.purge_at, u.priority, u.moved_at,
                (SELECT count(*) FROM history h WHERE h.memory_id = m.id) AS past,
                (SELECT count(*) FROM memory_words w WHERE w.memory_id = m.id) AS words
            FROM memory m JOIN memory_usage u ON u.memory_id = m.id ORDER BY m.id
            """
        )
        queued = await connection.fetchval("SELECT count(*) FROM outbox WHERE op = 'delete'")
    return [(places.get(row["id"]), *list(row.values())[1:]) for row in rows], queued  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownArgumentType, reportUnknownMemberType]


class TestKilled:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_at_any_moment_the_next_worker_ends_it_with_nothing_done_twice(
        self, database: Database, embedder: HashEmbedder, kind: MaintenanceKind
    ) -> None:
        """Three batches; a worker dies before, inside or after each transaction that it makes."""
        wanted: Any = None
        for dies_at in (None, *range(1, 60, 2)):
            keeping = Keeping(MemoryDesk(database, await make_tenant(database), embedder), size=4)
            keeping.now = START
            ids = await stocked(keeping)
            await ripened(keeping, kind, ids)
            job_id = await keeping.ask(kind)
            mortality = Mortality(dies_at)
            killed = False
            try:
                await keeping.slice(job_id, keeping.worker(MortalDatabase(database, mortality)))
            except Died:
                killed = True
            while not (await keeping.job(job_id)).finished_at:
                await keeping.slice(job_id)
            job = await keeping.job(job_id)
            found = (job.state, job.result, len(job.sample), await outcome(keeping, ids))
            wanted = wanted or found
            assert found == wanted, dies_at
            if not killed and dies_at is not None:
                assert dies_at > 10  # it got through all of them
                return
        raise AssertionError("a run that never ends alive")

    @pytest.mark.parametrize("kind", KINDS)
    async def test_who_slept_too_long_does_nothing_more(self, desk: MemoryDesk, kind: MaintenanceKind) -> None:
        keeping = Keeping(desk, size=4)
        ids = await stocked(keeping)
        await ripened(keeping, kind, ids)
        job_id = await keeping.ask(kind)
        between: list[Any] = []

        async def another() -> None:
            while not (await keeping.slice(job_id)).ended:
                pass
            between.append((await keeping.job(job_id), await outcome(keeping, ids)))

        await keeping.slice(job_id, keeping.worker(SleepyDatabase(keeping.database, another, before=5)))
        assert between == [(await keeping.job(job_id), await outcome(keeping, ids))]
        assert between[0][0].state == "done"


class TestCancelled:
    async def test_it_ends_before_its_next_batch_and_what_was_done_stays(self, desk: MemoryDesk) -> None:
        keeping = Keeping(desk, size=4)
        ids = await stocked(keeping)
        await ripened(keeping, "prune", ids)
        job_id = await keeping.ask("prune")
        await keeping.slice(job_id, keeping.worker(slice_s=0))
        async with keeping.database.tenant(keeping.tenant) as connection:
            await ask_cancel(keeping.tenant, connection, job_id)
        while not (await keeping.slice(job_id)).ended:
            pass
        job = await keeping.job(job_id)
        assert (job.state, job.result) == ("cancelled", {"checked": 4, "forgotten": 4})
        assert await keeping.hidden() == set(ids[:4])


class TestFairness:
    async def test_a_huge_tenant_holds_up_nobody(self, database: Database, embedder: HashEmbedder) -> None:
        """One worker that takes slices in the order in which the sweep and the slices themselves ask for them."""
        huge = Keeping(MemoryDesk(database, await make_tenant(database), embedder), size=4)
        await huge.write(*(f"note {n}" for n in range(100)))
        small = [Keeping(MemoryDesk(database, await make_tenant(database), embedder), size=4) for _ in range(20)]
        for keeping in small:
            await keeping.write("only one", priority=2)
        everybody = {keeping.tenant: keeping for keeping in (huge, *small)}
        for keeping in everybody.values():
            keeping.now += timedelta(days=400)
        waiting = [(keeping.tenant, await keeping.ask("prune")) for keeping in everybody.values()]
        async with database.system() as connection:
            due = await jobs_due(connection, limit=10_000)
        assert [(job.tenant, job.id) for job in due if job.tenant in everybody] == waiting
        ended: list[TenantId] = []
        while waiting:
            tenant, job_id = waiting.pop(0)
            report = await everybody[tenant].worker(slice_s=0).run(tenant, job_id)
            if report.ended:
                ended.append(tenant)
            else:
                waiting.append((tenant, job_id))
        assert ended == [*(keeping.tenant for keeping in small), huge.tenant]

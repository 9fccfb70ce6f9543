"""Erasing a tenant: every row of every table, every collection, and what caches keep. The index is in memory."""

from collections.abc import AsyncGenerator
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis
from tests.integration.maintenance.erasing import Erasing, everywhere

from memplane_core.clients.vector_cache import cache_prefix
from memplane_core.contracts.jobs import ACCESS_STREAM, USES_KEY
from memplane_core.domain.errors import NotFound
from memplane_core.storage import bootstrap, erasures
from memplane_core.storage.backlog import tenants_with_work
from memplane_core.storage.erasures import Begun, ErasureRecord
from memplane_core.storage.jobs import create_job, jobs_due
from memplane_core.storage.tenant_rows import KEPT, tenant_tables
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.faults import Died, MortalDatabase, Mortality
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.tenants import make_tenant
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.erase_copies import NoCopies, ValkeyCopies
from memplane_maintenance.jobs.erase_tenant import EraseTenant

pytestmark = pytest.mark.anyio


class Deleting(Erasing):
    """The same of the tenant itself."""

    async def delete(self) -> Begun:
        """Delete the tenant, as the gateway does."""
        async with self.database.tenant(self.tenant) as connection:
            return await erasures.begin_tenant(self.tenant, connection, subject="mark", started_by="admin")

    async def gone(self, worker: JobRunner | None = None) -> ErasureRecord:
        """Slices until nothing is left."""
        for _ in range(60):
            await self.slice(worker, kind="erase_tenant")
            async with self.database.tenant(self.tenant) as connection:
                found = await erasures.tenant_erasure(self.tenant, connection)
            if found is not None and found.state == "done":
                return found
        raise AssertionError("it does not end")


@pytest.fixture
def deleting(desk: MemoryDesk, embedder: HashEmbedder) -> Deleting:
    return Deleting(desk, MemoryIndex(), embedder, copies=NoCopies())


@pytest.fixture
async def cache(valkey: ValkeyServer) -> AsyncGenerator[Redis]:
    client: Redis = Redis.from_url(valkey.url, protocol=3)
    yield client
    await client.aclose()


@pytest.fixture
async def superuser(postgres: PostgresServer, database_name: str) -> AsyncGenerator[Any]:
    connection = await bootstrap.connect(postgres.superuser_url(database_name))
    yield connection
    await connection.close()


async def fill(deleting: Deleting) -> None:
    """A row in every table that keeps any of a tenant."""
    await deleting.desk.write("a memory", "another", user_id="ana", scene=["tea"])
    await deleting.observe("a kettle", user_id="ben")
    await deleting.ask(user_id="ana")
    await deleting.settle()
    tenant = deleting.tenant
    await deleting.sql(
        "INSERT INTO api_key (tenant_id, id, name, digest, scopes) VALUES ($1, $2, 'key', '', '{}')",
        tenant,
        uuid4().hex[:12],
    )
    await deleting.sql("INSERT INTO usage_day (tenant_id, day) VALUES ($1, '2026-01-01')", tenant)
    await deleting.sql("INSERT INTO idempotency (tenant_id, key, route, body_hash) VALUES ($1, 'k', 'r', '')", tenant)
    async with deleting.database.tenant(tenant) as connection:
        job = await create_job(tenant, connection, kind="reindex", params={}, dry_run=False, started_by="test")
        await connection.execute(
            "INSERT INTO erased_memory (tenant_id, erasure_id, memory_id) VALUES ($1, $2, $2)", tenant, uuid4()
        )
        await connection.execute(
            "INSERT INTO merge_plan (tenant_id, job_id, memory_id, survivor_id, rev) VALUES ($1, $2, $3, $3, 1)",
            *(tenant, job.id, uuid4()),
        )
        await connection.execute(
            "INSERT INTO merge_mark (tenant_id, generation, terms, seen) VALUES ($1, 1, '{}', now())", tenant
        )


async def test_no_row_of_any_table_is_left_but_of_those_that_are_meant_to(
    deleting: Deleting, cache: Redis, superuser: Any
) -> None:
    deleting.copies = ValkeyCopies(cache, cache)
    deleting.runner = deleting.worker()
    await fill(deleting)
    tenant = deleting.tenant
    tables = [
        row["name"]
        for row in await superuser.fetch(
            "SELECT c.relname AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace"
            " AND a.attname = 'tenant_id'"
        )
    ]

    async def rows() -> dict[str, int]:
        counted = {
            name: await superuser.fetchval(f"SELECT count(*) FROM {name} WHERE tenant_id = $1", tenant)
            for name in tables
        }
        return {name: count for name, count in counted.items() if count}

    assert len(await rows()) > 15
    async with deleting.database.tenant(tenant) as connection:
        assert set(await tenant_tables(tenant, connection)) == set(tables) - KEPT
    collection = (await deleting.desk.generation()).collection
    await cache.set(cache_prefix(tenant) + b"digest", b"vector")
    await cache.xadd(ACCESS_STREAM, {"tenant": str(tenant), "at": "1", "ids": str(uuid4())})
    await cache.zadd(USES_KEY, {collection: 1.0})

    await deleting.delete()
    done = await deleting.gone()

    assert set(await rows()) == {"erasure"}
    left = await superuser.fetchrow("SELECT * FROM tenant WHERE id = $1", tenant)
    assert (left["name"], left["policy"], left["limits"]) == ("", "{}", "{}")
    assert set(await everywhere(superuser, str(tenant))) == {"public.tenant", "public.erasure"}
    assert await deleting.index.collections() == []
    assert await cache.keys(f"*{tenant.hex}*") == []
    assert await cache.zscore(USES_KEY, collection) is None
    assert await cache.xlen(ACCESS_STREAM) == 0
    assert done.receipt is not None
    assert (done.counts["memory"], done.counts["api_key"], done.counts["collections"]) == (2, 1, 1)


async def test_nobody_works_for_it_and_nobody_writes_about_it_from_the_first_moment_on(deleting: Deleting) -> None:
    await deleting.desk.write("pending", user_id="ana")
    async with deleting.database.tenant(deleting.tenant) as connection:
        await create_job(deleting.tenant, connection, kind="reconcile", params={}, dry_run=False, started_by="test")
    begun = await deleting.delete()
    async with deleting.database.system() as connection:
        assert deleting.tenant not in await tenants_with_work(connection, limit=10_000)
        mine = [due for due in await jobs_due(connection, limit=10_000) if due.tenant == deleting.tenant]
    assert [row["kind"] for row in await deleting.sql("SELECT kind FROM job")] == ["erase_tenant"]
    assert len(mine) == 1
    with pytest.raises(NotFound):
        await deleting.sql(
            "INSERT INTO memory (tenant_id, id, content, scene, memory_type, importance, pinned, metadata,"
            " occurred_at, occurred_given) VALUES ($1, $2, 'x', '{}', 'x', 0.5, false, '{}', now(), false)",
            deleting.tenant,
            uuid4(),
        )
    with pytest.raises(NotFound):
        await deleting.observe("a kettle", user_id="ana")
    with pytest.raises(NotFound):
        await deleting.ask(user_id="ana")
    assert (await deleting.delete()).made is False
    assert (await deleting.gone()).id == begun.id
    assert (await deleting.delete()) == Begun(begun.id, made=False)


async def test_a_tenant_of_the_same_name_starts_empty(deleting: Deleting) -> None:
    await deleting.desk.write("before")
    name = cast("str", (await deleting.sql("SELECT name FROM tenant"))[0]["name"])
    await deleting.delete()
    again = await make_tenant(deleting.database)
    async with deleting.database.tenant(again) as connection:
        await connection.execute("UPDATE tenant SET name = $1", name)
        assert await connection.fetchval("SELECT count(*) FROM memory") == 0
    await MemoryDesk(deleting.database, again, HashEmbedder(window=200)).write("after")
    await deleting.gone()
    async with deleting.database.tenant(again) as connection:
        assert await connection.fetchval("SELECT count(*) FROM memory") == 1


async def test_a_worker_that_dies_between_two_passes_shortens_no_wait(deleting: Deleting) -> None:
    await deleting.desk.write("a memory")
    await deleting.delete()
    job = EraseTenant(deleting.database, deleting.index, rpc_timeout_s=0.0, settle_s=600.0, again_s=0.0)
    worker = JobRunner(deleting.database, {"erase_tenant": job}, slice_s=60.0)
    await deleting.slice(worker, kind="erase_tenant")
    # As if it had died before its run was saved: the pause and the checkpoint are lost.
    [run] = await deleting.sql("UPDATE job SET not_before = clock_timestamp(), checkpoint = '{}' RETURNING id")
    await worker.run(deleting.tenant, UUID(int=run["id"].int))
    async with deleting.database.tenant(deleting.tenant) as connection:
        found = await erasures.tenant_erasure(deleting.tenant, connection)
    assert found is not None
    assert (found.state, found.pass_, found.phase) == ("running", 2, "rows")
    assert await deleting.sql("SELECT FROM job WHERE not_before > clock_timestamp() + interval '500 seconds'") != []


async def test_a_worker_may_die_at_any_moment(desk: MemoryDesk, embedder: HashEmbedder) -> None:
    moment = 1
    while True:
        tenant = await make_tenant(desk.database)
        own = Deleting(MemoryDesk(desk.database, tenant, embedder), MemoryIndex(), embedder, copies=NoCopies())
        await fill(own)
        await own.delete()
        database = MortalDatabase(desk.database, Mortality(moment))
        job = EraseTenant(database, own.index, rpc_timeout_s=0.0, settle_s=0.0, again_s=0.0)
        try:
            await own.slice(JobRunner(desk.database, {"erase_tenant": job}), kind="erase_tenant")
        except Died:
            died = True
        else:
            died = False
        done = await own.gone()
        assert (done.counts["memory"], done.counts["memory_words"]) == (2, 2), moment
        for table in ("memory", "chunk", "job", "lease", "generation", "outbox"):
            assert await own.sql(f"SELECT FROM {table}") == [], (moment, table)
        if not died:
            break
        moment += 17
    assert moment > 80

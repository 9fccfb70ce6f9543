"""Erasing persons: what must not slip through between two steps, or between two stores. The index is in memory."""

import asyncio
import time
from datetime import UTC, datetime
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
from tests.integration.maintenance.erasing import Erasing

from memplane_core.domain.errors import Conflict
from memplane_core.domain.index import NEVER, Generation, IndexFilter, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import merges
from memplane_core.storage.erasures import Subject, begin, end_run
from memplane_core.storage.jobs import claim_job
from memplane_core.storage.markers import Author
from memplane_core.storage.merges import Joining
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.tenants import make_tenant
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.erase import Erase
from memplane_maintenance.jobs.erase_copies import NoCopies

pytestmark = pytest.mark.anyio


class BrokenForBad(MemoryIndex):
    """An index that nobody foresaw, where it is asked about the user `bad`."""

    async def keys_of(
        self, tenant: TenantId, generation: Generation, where: IndexFilter, *, limit: int
    ) -> list[IndexKey]:
        if where.user_id == ("bad",):
            raise RuntimeError("broken")
        return await super().keys_of(tenant, generation, where, limit=limit)


async def test_one_that_cannot_be_done_lets_the_others_be_done_first(desk: MemoryDesk, embedder: HashEmbedder) -> None:
    erasing = Erasing(desk, BrokenForBad(), embedder, copies=NoCopies())
    bad, *others = [await erasing.ask(user_id=user) for user in ("bad", "ana", "ben")]
    job_id = (await erasing.sql("SELECT id FROM job"))[0]["id"]
    for _ in range(40):
        await erasing.sql("UPDATE job SET not_before = clock_timestamp()")
        await erasing.runner.run(desk.tenant, UUID(int=job_id.int))
    assert [(await erasing.erasure(begun.id)).state for begun in (bad, *others)] == ["failed", "done", "done"]


def _row(dim: int, user: str) -> IndexRow:
    return IndexRow(
        key=IndexKey(uuid4(), 1, 0),
        vector=np.ones(dim, np.float32),
        user_id=user,
        agent_id="",
        session_id="",
        memory_type="x",
        occurred_at=0,
        expires_at=NEVER,
    )


async def test_rows_of_the_subject_that_postgres_knows_nothing_of_are_removed_and_no_others(
    desk: MemoryDesk, embedder: HashEmbedder
) -> None:
    index = MemoryIndex()
    erasing = Erasing(desk, index, embedder, copies=NoCopies())
    await desk.write("of his", user_id="ben")
    await erasing.settle()
    his = await erasing.held()
    await desk.write("of hers", user_id="ana")
    await erasing.settle()
    generation = await desk.generation()
    strays = [_row(generation.dim, user) for user in ("ana", "ben")]
    await index.upsert(desk.tenant, generation, strays)
    done = await erasing.finish((await erasing.ask(user_id="ana")).id)
    assert done.counts["index_rows_g1"] == 2
    assert await erasing.held() == {*his, strays[1].key}


async def test_the_second_pass_waits_for_writes_that_were_refused_and_are_embedding_yet(
    desk: MemoryDesk, embedder: HashEmbedder
) -> None:
    index = MemoryIndex()
    erasing = Erasing(desk, index, embedder, copies=NoCopies())
    begun = await erasing.ask(user_id="ana")
    await erasing.slice(JobRunner(desk.database, {"erase": Erase(desk.database, index, settle_s=600.0)}, slice_s=60.0))
    waiting = await erasing.erasure(begun.id)
    assert (waiting.state, waiting.pass_) == ("running", 2)
    assert (waiting.not_before - waiting.created_at).total_seconds() >= 600


async def test_it_does_not_end_before_every_gateway_knows_that_keys_of_the_subject_are_revoked(
    desk: MemoryDesk, embedder: HashEmbedder
) -> None:
    erasing = Erasing(desk, MemoryIndex(), embedder, copies=NoCopies())
    await erasing.sql(
        "INSERT INTO api_key (tenant_id, id, name, digest, scopes, bind_user_id, revoked_at) VALUES"
        " ($1, $2, 'k', '', '{}', 'ana', NULL), ($1, $3, 'k', '', '{}', 'ben', now() - interval '1 minute')",
        *(desk.tenant, uuid4().hex[:12], uuid4().hex[:12]),
    )
    begun, old = await erasing.ask(user_id="ana"), await erasing.ask(user_id="ben")
    await erasing.slice()
    waiting = await erasing.erasure(begun.id)
    assert (waiting.state, waiting.phase, waiting.pass_, waiting.counts["keys"]) == ("running", "copies", 1, 1)
    [left] = await erasing.sql("SELECT not_before - clock_timestamp() AS left FROM erasure WHERE id = $1", begun.id)
    assert 20 < left["left"].total_seconds() <= 30
    assert waiting.error is not None
    with pytest.raises(Conflict):
        await desk.write("of hers", user_id="ana")
    assert (await erasing.erasure(old.id)).state == "done"  # whose key nobody trusts any more
    assert (await erasing.finish(begun.id)).error is None
    await desk.write("of another one of this name", user_id="ana")


async def test_a_run_does_not_end_while_somebody_asks_for_another_erasure(
    desk: MemoryDesk, embedder: HashEmbedder
) -> None:
    erasing = Erasing(desk, MemoryIndex(), embedder, copies=NoCopies())
    await erasing.ask(user_id="ana")
    [job] = await erasing.sql("SELECT id FROM job")
    job_id = UUID(int=job["id"].int)
    await erasing.sql("UPDATE erasure SET state = 'failed'")
    async with desk.database.tenant(desk.tenant) as connection:
        assert await claim_job(desk.tenant, connection, job_id, epoch=1)

    async def end() -> bool:
        async with desk.database.tenant(desk.tenant) as connection:
            return await end_run(desk.tenant, connection, job_id, epoch=1)

    async with desk.database.tenant(desk.tenant) as connection:
        await begin(desk.tenant, connection, Subject(user_id="ben"), subject="mark", started_by="test")
        ending = asyncio.create_task(end())
        deadline = time.monotonic() + 10
        while not await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
    assert await ending is False
    assert [row["state"] for row in await erasing.sql("SELECT state FROM job")] == ["running"]


async def test_so_many_of_a_tenant_run_at_once_and_no_more_and_other_tenants_are_not_asked(
    desk: MemoryDesk, embedder: HashEmbedder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplane_core.storage.erasures.MOST_RUNNING", 2)
    erasing = Erasing(desk, MemoryIndex(), embedder, copies=NoCopies())
    first, second = await erasing.ask(user_id="ana"), await erasing.ask(user_id="ben")
    with pytest.raises(Conflict, match="2 erasures are under way") as refused:
        await erasing.ask(user_id="carl")
    assert refused.value.retry_after == 60
    assert await erasing.ask(user_id="ana") == msgspec.structs.replace(first, made=False)
    other = Erasing(
        MemoryDesk(database, await make_tenant(database), embedder), MemoryIndex(), embedder, copies=NoCopies()
    )
    assert (await other.ask(user_id="carl")).made
    # All of a tenant's are one run: no more workers are at it than at any other job, and it goes slice by slice.
    assert len(await erasing.sql("SELECT id FROM job")) == 1
    await erasing.finish(second.id)
    assert (await erasing.ask(user_id="carl")).made


async def test_memories_of_others_remember_no_merge_of_what_was_hers(desk: MemoryDesk, embedder: HashEmbedder) -> None:
    erasing = Erasing(desk, MemoryIndex(), embedder, copies=NoCopies())
    ids = await desk.write("one", "two", "three", "four", user_id="ana", scene=["hers"])
    async with desk.database.tenant(desk.tenant) as connection:
        locked = await merges.lock(desk.tenant, connection, ids)
        joinings = [Joining(survivor=locked[ids[n]], others=[locked[ids[n + 1]]]) for n in (0, 2)]
        at = datetime.now(UTC)
        await merges.merge(desk.tenant, connection, joinings, purge_at=at, author=Author("key", "request"))
    await erasing.sql("UPDATE memory SET user_id = 'ben' WHERE id = ANY($1)", [ids[0], ids[2]])
    # One was written again by its name, and is merged into nothing now.
    await erasing.sql("UPDATE memory SET state = 'active', merged_into = NULL, purge_at = NULL WHERE id = $1", ids[3])
    done = await erasing.finish((await erasing.ask(user_id="ana")).id)
    assert (done.state, done.counts["memories"], done.counts["merges"]) == ("done", 2, 1)
    rows = await erasing.sql("SELECT id, merges, version FROM memory ORDER BY id")
    assert [(row["id"], row["merges"], row["version"]) for row in rows] == [(ids[0], None, 2), (ids[2], None, 2)]


async def test_a_batch_that_cites_much_is_written_however_many_memories_were_erased_that_day(desk: MemoryDesk) -> None:
    async with desk.database.tenant(desk.tenant) as connection:
        await connection.execute(
            "INSERT INTO erased_memory (tenant_id, erasure_id, memory_id)"
            " SELECT $1, $2, gen_random_uuid() FROM generate_series(1, 5000)",
            *(desk.tenant, uuid4()),
        )
        erased = await connection.fetchval("SELECT max(memory_id::text) FROM erased_memory")
    # Within the time that a statement may take.
    await desk.write(
        *(f"insight {n}" for n in range(200)), metadata={"derived_from": [*(str(uuid4()) for _ in range(49)), "no id"]}
    )
    for cited in (erased, UUID(erased).hex.upper(), ["no id", erased]):
        with pytest.raises(Conflict):
            await desk.write("made from what is gone", metadata={"derived_from": cited})

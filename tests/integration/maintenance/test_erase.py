"""Erasing persons: what it reaches, and that nothing written meanwhile escapes it. The index is in memory."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
import pytest
from redis.asyncio import Redis
from tests.integration.maintenance.erasing import Erasing, everywhere, forget, reflected

from memplane_core.clients.vector_cache import cache_prefix
from memplane_core.contracts.jobs import ACCESS_STREAM
from memplane_core.domain.errors import Conflict, ErasureUnderWay
from memplane_core.domain.index import Generation, IndexFilter, IndexKey
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import bootstrap
from memplane_core.storage.backlog import trim_finished
from memplane_core.storage.erasure_reach import STORES, SUBJECTS
from memplane_core.storage.erasures import receipt_digest
from memplane_core.storage.jobs import ask_cancel, create_job
from memplane_core.storage.session import Connection
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.faults import Died, GatedIndex, MortalDatabase, Mortality
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.tenants import make_tenant
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.drain import Drainer, DrainLimits
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.erase import Erase
from memplane_maintenance.jobs.erase_copies import NoCopies, ValkeyCopies

pytestmark = pytest.mark.anyio


@pytest.fixture
def erasing(desk: MemoryDesk, embedder: HashEmbedder) -> Erasing:
    return Erasing(desk, MemoryIndex(), embedder, copies=NoCopies())


@pytest.fixture
async def cache(valkey: ValkeyServer) -> AsyncGenerator[Redis]:
    client: Redis = Redis.from_url(valkey.url, protocol=3)
    yield client
    await client.aclose()


@pytest.fixture
async def superuser(postgres: PostgresServer, database_name: str) -> AsyncGenerator[Connection]:
    connection = await bootstrap.connect(postgres.superuser_url(database_name))
    yield cast("Connection", connection)
    await connection.close()


async def write_all_of(erasing: Erasing, mark: str) -> list[UUID]:
    """Memories of the user `mark`, which is in every field of theirs, one of them hidden."""
    own = await erasing.desk.write(
        *(f"{mark} likes {n} sorts of tea" for n in range(8)),
        user_id=mark,
        session_id=f"at {mark}'s",
        actor=mark,
        scene=[mark, "tea"],
        metadata={"note": {"of": mark}},
        source=mark,
    )
    own += await erasing.desk.write("named", user_id=mark, external_id=f"{mark}-1")
    await forget(erasing, own[0])
    return own


async def leave_traces(erasing: Erasing, mark: str, own: UUID) -> None:
    """What else may be kept of a user: runs that were asked about it, plans, keys, and repeats of all kinds."""
    key = uuid4().hex[:12]
    await erasing.sql(
        "INSERT INTO api_key (tenant_id, id, name, digest, scopes, bind_user_id)"
        " VALUES ($1, $2, $3, '', '{}', $3), ($1, $4, 'another', '', '{}', 'another')",
        erasing.tenant,
        key,
        mark,
        uuid4().hex[:12],
    )
    async with erasing.database.tenant(erasing.tenant) as connection:
        for kind, params in (("forget", {"filters": {"user_id": {"in": [mark]}}}), ("prune", {"user": "another"})):
            await create_job(erasing.tenant, connection, kind=kind, params=params, dry_run=False, started_by="test")
    [job] = await erasing.sql("UPDATE job SET state = 'done' WHERE kind = 'forget' RETURNING id")
    await erasing.sql(
        "INSERT INTO merge_plan (tenant_id, job_id, memory_id, survivor_id, rev)"
        " SELECT $1, id, $2, $2, 1 FROM job WHERE kind = 'prune'",
        *(erasing.tenant, own),
    )
    await erasing.sql("UPDATE job SET checkpoint = jsonb_build_object('after', $1::text)", str(own))
    outcomes: dict[str, Any] = {
        "written": [{"id": str(own), "status": 201, "deduplicated": False}],
        "forgotten": {"dry_run": False, "forgotten": 1, "sample": [str(own)], "complete": True},
        "job": [{"id": str(job["id"])}],
        "key": {"id": key},
        f"POST /v1/memories/{own}/undo": {"restored": [], "complete": True},
    }
    repeats = [(f"{name} of {mark}", name, outcome) for name, outcome in outcomes.items()]
    repeats.append(("of somebody else", f"POST /v1/memories/{uuid4()}/undo", [{"id": str(uuid4())}]))
    await erasing.sql(
        "INSERT INTO idempotency (tenant_id, key, route, body_hash, outcome)"
        " SELECT $1, r ->> 0, r ->> 1, '', r -> 2 FROM jsonb_array_elements($2::jsonb) AS r",
        *(erasing.tenant, repeats),
    )


class TestReach:
    async def test_nothing_is_left_of_a_person_anywhere_and_others_keep_theirs(
        self, erasing: Erasing, cache: Redis, superuser: Connection
    ) -> None:
        erasing.copies = ValkeyCopies(cache, cache)
        erasing.runner = erasing.worker()
        mark = f"mark{uuid4().hex}"
        own = await write_all_of(erasing, mark)
        [theirs, moved] = await erasing.desk.write("nobody likes coffee", "was once of the other", user_id="another")
        [insight] = await erasing.desk.write(
            f"{mark} is fond of tea", memory_type="insight", metadata={"derived_from": [str(own[1]), str(theirs)]}
        )
        await erasing.desk.write("so it is", metadata={"derived_from": str(insight)})
        await erasing.sql(
            "INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes) VALUES"
            " ($1, $2, 2, 'updated', 'k', 'r', $3), ($1, $2, 3, 'updated', 'k', 'r', $4), ($1, $2, 4, 'updated', 'k',"
            " 'r', $5)",
            *(erasing.tenant, moved, {"content": f"{mark} said"}, {"user_id": mark}, {"content": "said later"}),
        )
        await leave_traces(erasing, mark, own[2])
        seen = await erasing.observe(mark, user_id=mark)
        await erasing.sql(
            "INSERT INTO idempotency (tenant_id, key, route, body_hash, outcome) VALUES ($1, $2, 'observed', '', $3)",
            *(erasing.tenant, f"seen of {mark}", [{"id": str(seen), "kept": True}]),
        )
        watched = await erasing.observe("tea", user_id="another")
        await reflected(erasing, mark)
        await reflected(erasing, "another")
        await erasing.settle()
        await cache.set(cache_prefix(erasing.tenant) + b"digest", b"vector")
        await cache.xadd(ACCESS_STREAM, {"tenant": str(erasing.tenant), "at": "1", "ids": str(own[3])})
        assert {"public.memory", "public.history", "public.job"} <= {
            name.rpartition("_p")[0] if "_p" in name else name for name in await everywhere(superuser, mark)
        }

        begun = await erasing.ask(user_id=mark)
        done = await erasing.finish(begun.id)

        assert done.state == "done", done
        assert await everywhere(superuser, mark) == {}
        assert await cache.keys("mp:emb:2:*") == []
        assert await cache.xlen(ACCESS_STREAM) == 0
        kept = await erasing.sql("SELECT id, user_id FROM memory")
        assert {row["id"] for row in kept} == {theirs, moved}
        assert {key.memory_id for key in await erasing.held()} == {theirs, moved}
        history = await erasing.sql(
            "SELECT version, changes FROM history WHERE memory_id = $1 AND version > 1 ORDER BY version", moved
        )
        assert [row["changes"] for row in history] == [{}, {}, {"content": "said later"}]
        going_on = await erasing.sql("SELECT kind FROM job WHERE state <> 'done' AND NOT cancel_asked")
        assert [row["kind"] for row in going_on] == ["prune"]
        assert [row["key"] for row in await erasing.sql("SELECT key FROM idempotency")] == ["of somebody else"]
        keys = {row["bind_user_id"]: row["revoked_at"] for row in await erasing.sql("SELECT * FROM api_key")}
        assert len(keys) == 2
        assert keys.pop("another") is None
        assert None not in keys.values()
        assert (done.user_id, done.counts["memories"], done.counts["citing"]) == (None, len(own) + 2, 2)
        assert done.counts["index_rows_g1"] == len(own) + 2
        assert (done.counts["keys"], done.counts["jobs"], done.counts["idempotency"]) == (1, 1, 6)
        assert done.counts["observations"] == 1
        assert [row["id"] for row in await erasing.sql("SELECT id FROM observation")] == [watched]
        assert done.counts["merge_plans"] == 1
        assert (done.counts["cached_vectors"], done.counts["recalls"]) == (1, 1)
        assert [row["user_id"] for row in await erasing.sql("SELECT user_id FROM reflection")] == ["another"]
        [left] = await erasing.sql("SELECT sum(stored)::int AS stored, sum(held)::int AS held FROM memory_count")
        assert (left["stored"], left["held"]) == (3, 1)

    async def test_the_receipt_can_be_checked_and_tells_nobody_who_it_was(self, erasing: Erasing) -> None:
        await erasing.desk.write("a secret of the person", user_id="the person")
        done = await erasing.finish((await erasing.ask(user_id="the person")).id)
        assert done.receipt is not None
        told = msgspec.json.encode(done.receipt)
        canonical = json.dumps(json.loads(told), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert receipt_digest(done.receipt) == hashlib.sha256(canonical.encode()).hexdigest()
        assert b"person" not in told
        assert b"secret" not in told
        assert (done.receipt.kind, done.receipt.passes, done.receipt.erased["memories"]) == ("user", 2, 1)

    async def test_an_agent_and_a_pair(self, erasing: Erasing) -> None:
        for user, agent in (("u", "a"), ("u", "b"), ("v", "a"), ("v", None)):
            await erasing.desk.write(f"of {user} and {agent}", user_id=user, agent_id=agent)
        await erasing.finish((await erasing.ask(user_id="u", agent_id="a")).id)
        left = {(row["user_id"], row["agent_id"]) for row in await erasing.sql("SELECT user_id, agent_id FROM memory")}
        assert left == {("u", "b"), ("v", "a"), ("v", None)}
        await erasing.finish((await erasing.ask(agent_id="a")).id)
        left = {(row["user_id"], row["agent_id"]) for row in await erasing.sql("SELECT user_id, agent_id FROM memory")}
        assert left == {("u", "b"), ("v", None)}

    async def test_another_tenants_user_of_that_name_keeps_everything(self, erasing: Erasing) -> None:
        other = MemoryDesk(erasing.database, await make_tenant(erasing.database), HashEmbedder(window=200))
        await other.write("mine", user_id="ana")
        await erasing.desk.write("yours", user_id="ana")
        await erasing.finish((await erasing.ask(user_id="ana")).id)
        assert len(await other.current_keys()) == 1

    async def test_every_table_with_rows_of_memories_is_looked_through(self, erasing: Erasing) -> None:
        found = await erasing.sql(
            """
            SELECT c.relname AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
              AND a.attname = 'memory_id' AND NOT a.attisdropped
            """
        )
        assert {row["name"] for row in found} | {"memory"} == STORES.keys() | {"erased_memory"}
        named = await erasing.sql(
            """
            SELECT DISTINCT c.relname AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
              AND a.attname IN ('user_id', 'agent_id') AND NOT a.attisdropped
            """
        )
        assert {row["name"] for row in named} == {"memory", "erasure", *SUBJECTS}


class TestMeanwhile:
    async def test_whatever_would_write_about_the_subject_is_refused_and_taken_again_afterwards(
        self, erasing: Erasing
    ) -> None:
        [own, other] = [(await erasing.desk.write("x", user_id=user))[0] for user in ("ana", "ben")]
        begun = await erasing.ask(user_id="ana")
        with pytest.raises(ErasureUnderWay) as refused:
            await erasing.desk.write("of another and late", user_id="ana")
        assert refused.value.extra["id"] == str(begun.id)
        with pytest.raises(ErasureUnderWay):
            await erasing.desk.edit(other, user_id="ana")
        with pytest.raises(ErasureUnderWay):
            await erasing.desk.edit(own, user_id="ben")
        with pytest.raises(ErasureUnderWay):
            await forget(erasing, own)
        with pytest.raises(ErasureUnderWay):
            await erasing.observe("seen of another", user_id="ana")
        await erasing.desk.write("of somebody else", user_id="ben")
        await erasing.observe("seen of somebody else", user_id="ben")
        await erasing.finish(begun.id)
        assert await erasing.owners() == {"ben"}
        await erasing.desk.write("anew", user_id="ana")
        assert await erasing.owners() == {"ana", "ben"}

    async def test_a_write_in_flight_is_waited_for_and_erased(self, erasing: Erasing) -> None:
        async with erasing.desk.transaction("not committed yet", user_id="ana"):
            asking = asyncio.create_task(erasing.ask(user_id="ana"))
            await asyncio.sleep(0.2)
            assert not asking.done()
        done = await erasing.finish((await asking).id)
        assert (done.counts["memories"], await erasing.owners()) == (1, set())

    async def test_a_transaction_that_was_open_before_and_writes_after_is_refused(self, erasing: Erasing) -> None:
        async def write_late() -> None:
            async with erasing.database.tenant(erasing.tenant) as connection:
                await connection.fetchval("SELECT count(*) FROM memory")
                await erasing.ask(user_id="ana")
                await connection.execute(
                    "INSERT INTO memory (tenant_id, id, content, scene, memory_type, user_id, importance, pinned,"
                    " metadata, occurred_at, occurred_given)"
                    " VALUES ($1, $2, 'x', '{}', 'x', 'ana', 0.5, false, '{}', now(), false)",
                    erasing.tenant,
                    uuid4(),
                )

        with pytest.raises(ErasureUnderWay):
            await write_late()

    async def test_two_who_ask_at_once_get_one_erasure(self, erasing: Erasing) -> None:
        await erasing.desk.write("x", user_id="ana")
        both = await asyncio.gather(erasing.ask(user_id="ana"), erasing.ask(user_id="ana"))
        assert sorted(begun.made for begun in both) == [False, True]
        assert both[0].id == both[1].id
        assert (await erasing.finish(both[0].id)).counts["memories"] == 1

    async def test_several_subjects_are_erased_by_one_run(self, erasing: Erasing) -> None:
        begun = [await erasing.ask(user_id=user) for user in ("ana", "ben", "cleo")]
        assert [(await erasing.finish(one.id)).state for one in begun] == ["done"] * 3
        await erasing.slice()
        assert [row["state"] for row in await erasing.sql("SELECT state FROM job")] == ["done"]

    async def test_it_cannot_be_cancelled(self, erasing: Erasing) -> None:
        await erasing.ask(user_id="ana")
        job = (await erasing.sql("SELECT id FROM job"))[0]["id"]
        async with erasing.database.tenant(erasing.tenant) as connection:
            with pytest.raises(Conflict):
                await ask_cancel(erasing.tenant, connection, job)

    async def test_rows_that_reach_the_index_late_are_removed_by_the_second_pass(
        self, desk: MemoryDesk, embedder: HashEmbedder
    ) -> None:
        index = GatedIndex()
        erasing = Erasing(desk, index, embedder, copies=NoCopies())
        drainer = Drainer(desk.database, index, embedder, limits=DrainLimits(fresh_s=0.0))
        await desk.write("on its way", user_id="ana")
        index.gate.close()
        draining = asyncio.create_task(drainer.drain(desk.tenant))
        await index.gate.reached()
        begun = await erasing.ask(user_id="ana")
        first = erasing.worker(slice_s=0)
        await erasing.slice(first, leases_end=False)
        assert await erasing.owners() == set()
        while (await erasing.erasure(begun.id)).pass_ == 1:
            await erasing.slice(first)
        waiting = await erasing.erasure(begun.id)
        assert waiting.unsettled
        assert (waiting.not_before - waiting.created_at).total_seconds() > 0.9
        index.gate.open()
        await draining
        assert len(index.sent) == 1
        assert (await erasing.finish(begun.id)).state == "done"
        assert await erasing.held() == set()

    async def test_what_was_made_from_an_erased_memory_is_refused_for_a_day(self, erasing: Erasing) -> None:
        [source, other] = await erasing.desk.write("a secret", user_id="ana"), await erasing.desk.write("none")
        begun = await erasing.ask(user_id="ana")
        await erasing.finish(begun.id)
        with pytest.raises(Conflict) as refused:  # by a job that had read it before
            await erasing.desk.write("what she said", metadata={"derived_from": [str(other[0]), str(source[0])]})
        assert refused.value.extra["id"] == str(begun.id)
        await erasing.desk.write("what they said", metadata={"derived_from": [str(other[0])]})
        await erasing.sql("UPDATE erasure SET finished_at = finished_at - interval '25 hours'")
        async with erasing.database.system() as connection:
            await trim_finished(connection, outbox_age=timedelta(hours=1), idempotency_age=timedelta(hours=24))
        assert await erasing.sql("SELECT * FROM erased_memory") == []


class Broken(MemoryIndex):
    """An index that nobody foresaw; or, while `down`, one that is merely away."""

    async def keys_of(
        self, tenant: TenantId, generation: Generation, where: IndexFilter, *, limit: int
    ) -> list[IndexKey]:
        await self.ping()
        raise RuntimeError(str((tenant, generation, where, limit)))


class TestTrouble:
    async def test_while_a_part_is_away_it_waits_and_says_so(self, erasing: Erasing) -> None:
        begun = await erasing.ask(user_id="ana")
        index = Broken()
        index.down = True
        for _ in range(12):
            await erasing.slice(erasing.worker(slice_s=0, index=index))
        waiting = await erasing.erasure(begun.id)
        assert (waiting.state, waiting.error) == ("running", "the index was switched off by the test")
        assert (await erasing.finish(begun.id)).state == "done"

    async def test_what_nobody_foresaw_fails_it_at_last_and_writes_are_taken_again(self, erasing: Erasing) -> None:
        await erasing.desk.write("x", user_id="ana")
        begun = await erasing.ask(user_id="ana")
        failed = await erasing.finish(begun.id, erasing.worker(index=Broken()))
        assert (failed.state, failed.user_id, failed.receipt) == ("failed", None, None)
        assert "ana" not in (failed.error or "ana")
        await erasing.desk.write("anew", user_id="ana")
        assert (await erasing.finish((await erasing.ask(user_id="ana")).id)).counts["memories"] == 1


class TestDeath:
    async def test_a_worker_may_die_at_any_moment(self, erasing: Erasing) -> None:
        n = 1
        while True:
            user = f"user {n}"
            await erasing.desk.write("one", "two", "three", user_id=user)
            await erasing.settle()
            begun = await erasing.ask(user_id=user)
            database = MortalDatabase(erasing.database, Mortality(n))
            jobs = {"erase": Erase(database, erasing.index, rpc_timeout_s=0.0, settle_s=0.0)}
            try:
                await erasing.slice(JobRunner(database, jobs))
            except Died:
                died = True
            else:
                died = False
            done = await erasing.finish(begun.id)
            assert (done.state, done.counts["memories"], done.counts["words"]) == ("done", 3, 3), n
            assert await erasing.held() == set(), n
            if not died:
                break
            n += 7
        assert n > 40
        assert await erasing.owners() == set()

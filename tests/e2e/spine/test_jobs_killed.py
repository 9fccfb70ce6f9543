"""The worker is killed in the middle of a job of every kind at once, and the next one ends all of them right.

Each job has finished a batch, and the transaction of another one has done its work, but has not been committed: a
trigger on the rows that say how far they are makes all of them wait there.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import le
from typing import Any, ClassVar, Final, cast
from uuid import UUID, uuid4

import msgspec
import pytest
from celery import Celery
from tests.e2e.spine.conftest import all_indexed, all_memories, recalled, sentence, until
from tests.integration.maintenance.keeping import Keeping

from memplane_core.clients.jobs import close_app
from memplane_core.contracts.jobs import QUEUE_MAINTENANCE, TASK_SCHEDULE
from memplane_core.domain.index import IndexKey
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings, PostgresSettings, RedisSettings
from memplane_core.storage import bootstrap
from memplane_core.storage.limits import recount_memories
from memplane_core.storage.markers import Author, hide
from memplane_core.storage.session import Database, Row
from memplane_core.testing.chat import ScriptedChat
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.rows import eventually, index_row, unit_vectors
from memplane_core.testing.stack import Stack
from memplane_core.vectors import MilvusIndex
from memplane_maintenance.celery_app import create_app

STAYING: Final = 20
"""Memories of each tenant that no job is about."""

GATE: Final = 7_100_502
"""Key of the advisory lock behind which all jobs wait."""

STOPS: Final = f"""
CREATE FUNCTION wait_midway() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({GATE});
    RETURN NEW;
END $$;
CREATE TRIGGER wait_midway BEFORE UPDATE ON job FOR EACH ROW
WHEN (OLD.state = 'running' AND OLD.done > 0 AND NEW.result <> OLD.result
    AND (OLD.kind <> 'merge' OR (OLD.result->>'merged')::int > 0))
EXECUTE FUNCTION wait_midway();
CREATE TRIGGER wait_midway BEFORE UPDATE ON erasure FOR EACH ROW
WHEN ((OLD.counts->>'memories')::int > 0) EXECUTE FUNCTION wait_midway();
"""


class Case:
    """A tenant with memories for one kind of job, and what has to be so once it has ended."""

    kind: ClassVar[str]
    body: ClassVar[dict[str, Any]] = {}

    def __init__(self, stack: Stack, database: Database, index: MilvusIndex, chat: ScriptedChat) -> None:
        self.stack = stack
        self.index = index
        self.chat = chat
        self.client = stack.client(given := stack.make_tenant(self.kind))
        self.tenant = TenantId(UUID(given.id))
        self.desk = MemoryDesk(database, self.tenant, HashEmbedder(dim=384, models=("all-MiniLM-L6-v2",)))
        self.keeping = Keeping(self.desk)
        self.job_id = ""
        self.ids: list[UUID] = []

    async def write(self, count: int, **fields: Any) -> list[UUID]:
        """Memories that the job is about."""
        for start in range(0, count, 520):
            texts = (sentence(n) for n in range(start, min(count, start + 520)))
            self.ids += await self.desk.write(*texts, **fields)
        return self.ids

    async def prepare(self) -> None:
        """Write what the job is about."""
        raise NotImplementedError

    async def spoil(self) -> None:
        """What comes when the index has all of it."""

    def start(self) -> None:
        """Ask for the job."""
        answer = self.client.post("/v1/jobs", json={"kind": self.kind, **self.body})
        self.job_id = answer.raise_for_status().json()["id"]

    def job(self) -> dict[str, Any]:
        """The run as it is."""
        return self.client.get(f"/v1/jobs/{self.job_id}").raise_for_status().json()

    async def committed(self) -> int:
        """How much of the work is done for good; between nothing and all of it when the worker dies."""
        return self.job()["progress"]["done"]

    async def check(self) -> None:
        """Each effect is there, and once."""
        raise NotImplementedError

    async def rows(self, query: str, *args: object) -> list[Row]:
        """Of the tenant."""
        async with self.desk.database.tenant(self.tenant) as connection:
            return await connection.fetch(query, *args)

    async def count(self, what: str, *args: object) -> int:
        """Of the tenant's rows."""
        [row] = await self.rows(f"SELECT count(*) AS n FROM {what}", *args)
        return row["n"]

    async def histories(self, request_id: str) -> Counter[UUID]:
        """How often a run is in the history of each memory."""
        rows = await self.rows("SELECT memory_id FROM history WHERE request_id = $1", request_id)
        return Counter(row["memory_id"] for row in rows)

    async def held(self) -> set[IndexKey]:
        """What the index holds."""
        return set((await self.index.keys_after(self.tenant, await self.desk.generation(), limit=16_383)).keys)


class PrioritiesCase(Case):
    kind = "priorities"

    async def prepare(self) -> None:
        await self.write(2_040, embedded=False, priority=5)
        await self.rows("UPDATE outbox SET not_before = 'infinity'")  # the index is none of this job's
        await self.rows("UPDATE memory SET created_at = created_at - interval '300 days'")

    async def check(self) -> None:
        assert self.job()["result"] == {"checked": 2_040, "raised": 0, "lowered": 2_040}
        moved = await self.rows("SELECT count(*) AS n, priority, moved_at FROM memory_usage GROUP BY 2, 3")
        assert [(row["n"], row["priority"]) for row in moved] == [(2_040, 4)]
        assert await self.count("memory WHERE version = 1") == 2_040


class PruneCase(Case):
    """Begun by the tenant's policy."""

    kind = "prune"

    async def prepare(self) -> None:
        await self.write(1_040, priority=1)
        await self.desk.write(*(f"pinned {n}" for n in range(STAYING)), priority=1, pinned=True)
        await self.rows("UPDATE memory SET updated_at = updated_at - interval '2 years'")
        await self.rows("UPDATE memory_usage SET last_accessed_at = last_accessed_at - interval '2 years'")
        await self.rows("UPDATE tenant SET created_at = created_at - interval '1 day'")

    def start(self) -> None:
        on = {"prune": {"enabled": True}, "priorities": {"enabled": False}}
        self.client.patch("/v1/policy", json={"maintenance": on}).raise_for_status()
        broker: Any = {"broker_url": self.stack.valkey.url, "cache_url": self.stack.valkey.url}
        app: Celery = create_app(RedisSettings.model_validate(broker))
        cast("Any", app).send_task(TASK_SCHEDULE, queue=QUEUE_MAINTENANCE)  # as the beat does each minute
        close_app(app)
        jobs: list[dict[str, Any]] = []

        def begun() -> bool:
            jobs[:] = self.client.get("/v1/jobs").raise_for_status().json()["results"]
            return bool(jobs)

        until(begun, within_s=30, what="the policy's run has begun")
        [job] = jobs
        assert (job["kind"], job["started_by"]) == ("prune", "memplane")
        self.job_id = job["id"]

    async def check(self) -> None:
        assert self.job()["result"] == {"checked": 1_040 + STAYING, "forgotten": 1_040}
        assert await self.count("memory WHERE state = 'forgotten' AND version = 2") == 1_040
        assert await self.count("memory WHERE state = 'active' AND version = 1") == STAYING
        assert await self.histories(self.job_id) == Counter(self.ids)


class ExpireCase(Case):
    kind = "expire"

    async def prepare(self) -> None:
        await self.write(540)
        await self.desk.write(*(f"stays {n}" for n in range(STAYING)))

    async def spoil(self) -> None:
        past = datetime.now(UTC) - timedelta(days=40)
        await self.rows("UPDATE memory SET expires_at = $2 WHERE id = ANY($1)", self.ids, past)

    async def check(self) -> None:
        assert self.job()["result"] == {"deleted": 540}
        assert await self.keeping.rows_left(self.ids) == 0
        assert await self.count("memory") == STAYING


class PurgeCase(ExpireCase):
    kind = "purge"

    async def spoil(self) -> None:
        async with self.desk.database.tenant(self.tenant) as connection:
            past, author = datetime.now(UTC) - timedelta(minutes=1), Author("test", "test")
            await hide(self.tenant, connection, self.ids, state="forgotten", purge_at=past, author=author)


class MergeCase(Case):
    kind = "merge"
    body: ClassVar[dict[str, Any]] = {"threshold": 0.9}
    texts: Final = 150

    async def prepare(self) -> None:
        self.before: dict[str, dict[str, Any]] = {}
        when: dict[str, Any] = {"occurred_at": datetime(2026, 3, 1, 12, tzinfo=UTC), "user_id": "u"}
        for copy, form in enumerate(("{}", "{}!", "So, {}")):
            texts = (form.format(sentence(n)) for n in range(self.texts))
            self.ids += await self.desk.write(*texts, scene=[f"scene {copy}"], **when)
        await self.rows("UPDATE memory_usage SET access_count = 1")

    async def spoil(self) -> None:
        self.before = {memory["id"]: memory for memory in all_memories(self.client)}

    async def check(self) -> None:
        texts = self.texts
        assert self.job()["result"] == {"looked_at": 3 * texts, "waiting": 0, "clusters": texts, "merged": 2 * texts}
        active = {memory["id"]: memory for memory in all_memories(self.client)}
        groups = [[str(memory_id) for memory_id in self.ids[n::texts]] for n in range(texts)]
        survivors = [next(memory_id for memory_id in group if memory_id in active) for group in groups]
        assert set(survivors) == active.keys()
        assert {tuple(sorted(memory["scene"])) for memory in active.values()} == {("scene 0", "scene 1", "scene 2")}
        assert {memory["access_count"] for memory in active.values()} == {3}
        assert await self.histories(self.job_id) == Counter(self.ids)
        found = recalled(self.client, sentence(7))
        assert set(found) <= active.keys()

        for survivor in survivors:
            undone = self.client.post("/v1/memories/merge/undo", json={"survivor": survivor}).raise_for_status().json()
            assert (len(undone["restored"]), undone["complete"]) == (2, True)
        until(lambda: all_indexed(self.client), within_s=60, what="all are indexed again")
        grown = ("version", "updated_at")
        after = {memory["id"]: memory for memory in all_memories(self.client)}
        assert after.keys() == self.before.keys()
        for memory_id, memory in self.before.items():
            assert {**after[memory_id], **{name: memory[name] for name in grown}} == memory


class ReconcileCase(Case):
    kind = "reconcile"

    async def prepare(self) -> None:
        await self.write(600)

    async def spoil(self) -> None:
        generation = await self.desk.generation()
        await self.index.delete(self.tenant, generation, [IndexKey(memory_id, 1, 0) for memory_id in self.ids[::15]])
        row = index_row(0, unit_vectors(1, generation.dim)[0])
        rows = [msgspec.structs.replace(row, key=IndexKey(uuid4(), 1, 0)) for _ in range(30)]
        await self.index.upsert(self.tenant, generation, rows)

    async def check(self) -> None:
        result = self.job()["result"]
        assert {name: count for name, count in result.items() if count} == {
            "checked": result["checked"],
            "missing": 40,
            "requeued": 40,
            "stale": 30,
            "removed": 30,
        }


class ReflectCase(Case):
    kind = "reflect"
    body: ClassVar[dict[str, Any]] = {"threshold": 5}

    async def prepare(self) -> None:
        await self.write(24, user_id="u", unscored=True)

    async def check(self) -> None:
        result = self.job()["result"]
        assert (result["scored"], result["changed"], result["insights"], result["repeated"]) == (24, 0, 1, 0)
        assert result["questions"] == 25
        assert 25 < len(self.chat.questions) <= 29  # a page was asked about again: its answers had not been stored
        [insight] = await self.rows("SELECT id, metadata FROM memory WHERE memory_type = 'insight'")
        assert insight["metadata"] == {"derived_from": [str(memory_id) for memory_id in self.ids[:2]]}
        assert await self.histories(f"reflect:{self.job_id}") == Counter([*self.ids, insight["id"]])
        assert await self.count("memory WHERE version = 2 AND NOT unscored") == 24


class EraseCase(Case):
    kind = "erase"

    async def prepare(self) -> None:
        await self.write(1_040, user_id="somebody")
        await self.desk.write(*(f"another's {n}" for n in range(STAYING)), user_id="another")

    def start(self) -> None:
        answer = self.client.post("/v1/erasures", json={"user_id": "somebody"})
        self.job_id = answer.raise_for_status().json()["id"]

    def job(self) -> dict[str, Any]:
        return self.client.get(f"/v1/erasures/{self.job_id}").raise_for_status().json()

    async def committed(self) -> int:
        return 1_040 + STAYING - await self.count("memory")

    async def check(self) -> None:
        assert self.job()["erased"]["memories"] == 1_040
        assert await self.keeping.rows_left(self.ids) == 0
        assert await self.count("memory WHERE user_id = 'another'") == await self.count("memory") == STAYING


CASES: Final = (
    *(PrioritiesCase, PruneCase, ExpireCase, PurgeCase),
    *(MergeCase, ReconcileCase, ReflectCase, EraseCase),
)


@asynccontextmanager
async def gate(stack: Stack) -> AsyncGenerator[Any]:
    """Whoever has come halfway waits until the context ends, whatever becomes of its process; gives a connection."""
    database = stack.env["MEMPLANE_POSTGRES__URL"].rpartition("/")[2].partition("?")[0]
    connection = cast("Any", await bootstrap.connect(stack.postgres.superuser_url(database)))
    try:
        await connection.execute(STOPS)
        await connection.execute(f"SELECT pg_advisory_lock({GATE})")
        yield connection
    finally:
        await connection.close()


async def waiting(connection: Any) -> int:
    """How many wait at the gate."""
    return await connection.fetchval(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted", GATE
    )


async def settled(case: Case) -> bool:
    """Whether the index holds exactly what Postgres says."""
    return await case.held() == await case.desk.current_keys()


@pytest.mark.anyio
@pytest.mark.timeout(400)
async def test_killed_midway_every_kind_of_job_is_ended_by_the_next_worker_with_nothing_done_twice(
    stack: Stack, chat: ScriptedChat
) -> None:
    settings = PostgresSettings.model_validate({"url": stack.env["MEMPLANE_POSTGRES__URL"]})
    index = MilvusIndex(MilvusSettings(uri=stack.milvus.uri))
    async with Database.open(settings) as database, contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(index.close)
        cases = [kind(stack, database, index, chat) for kind in CASES]
        for case in cases:
            closing.callback(case.client.close)
            await case.prepare()
        for case in cases:
            if case.kind != "priorities":
                assert await eventually(partial(settled, case), bool, timeout_s=60), case.kind
        for case in cases:
            await case.spoil()

        async with gate(stack) as connection:
            for case in cases:
                case.start()
            for case in cases:  # jobs of tenants that other tests left behind may wait there too
                assert await eventually(case.committed, bool, timeout_s=60) > 0, case.kind
            assert await eventually(partial(waiting, connection), partial(le, len(cases)), timeout_s=60) >= len(cases)
            stack.worker.kill()
        for case in cases:
            job = case.job()
            assert (job["state"], job["finished_at"]) == ("running", None), (case.kind, job)
            assert await case.committed() > 0, (case.kind, job)
        stack.worker.start()
        for case in cases:
            until(partial(ended, case), within_s=90, what=f"{case.kind} has ended")
            job = case.job()
            assert (job["state"], job["error"]) == ("done", None), (case.kind, job)
        for case in cases:
            await case.check()
            async with database.tenant(case.tenant) as connection:
                counted = await recount_memories(case.tenant, connection, mend=False)
            assert counted.stored == counted.counted, case.kind
            if case.kind != "priorities":
                assert await eventually(partial(settled, case), bool, timeout_s=60), case.kind


def ended(case: Case) -> bool:
    return case.job()["state"] not in ("queued", "running")

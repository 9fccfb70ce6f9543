"""What a drain tells the index, over a real Postgres."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest

from memplane_core.domain.index import NEVER, Generation, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.backlog import has_due_work, pending_of
from memplane_core.storage.session import Database, pack_vector
from memplane_core.testing.embedder import POISON, HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.memories import MemoryDesk
from memplane_maintenance.drain import Drainer, DrainLimits, DrainReport

pytestmark = pytest.mark.anyio

LIMITS = DrainLimits()


class RecordingIndex(MemoryIndex):
    """An index that remembers the calls it got, also those it refused."""

    def __init__(self) -> None:
        super().__init__()
        self.upserts: list[list[IndexRow]] = []
        self.deletes: list[list[IndexKey]] = []

    async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
        self.upserts.append(list(rows))
        await super().upsert(tenant, generation, rows)

    async def delete(self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]) -> None:
        self.deletes.append(list(keys))
        await super().delete(tenant, generation, keys)


@pytest.fixture
def index() -> RecordingIndex:
    return RecordingIndex()


@pytest.fixture
def drainer(database: Database, index: RecordingIndex, embedder: HashEmbedder) -> Drainer:
    return Drainer(database, index, embedder, limits=LIMITS)


async def stored(desk: MemoryDesk, index: MemoryIndex) -> set[IndexKey]:
    """All keys that the index holds."""
    return set((await index.keys_after(desk.tenant, await desk.generation(), limit=16_383)).keys)


class TestUpserts:
    async def test_a_row_holds_what_the_filters_need(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex
    ) -> None:
        [full] = await desk.write(
            "the blue kettle",
            user_id="u ✓",
            agent_id="a",
            session_id="s",
            memory_type="insight",
            occurred_at=datetime(2023, 5, 8, 13, 56, 1, 999_999, UTC),
            expires_at=datetime(2040, 1, 1, tzinfo=UTC),
        )
        [bare] = await desk.write("the red kettle", occurred_at=datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC))
        await drainer.drain(desk.tenant)
        rows = {row.key.memory_id: row for batch in index.upserts for row in batch}
        row = rows[full]
        assert (row.key.rev, row.key.n, row.user_id, row.agent_id, row.session_id, row.memory_type) == (
            *(1, 0),
            *("u ✓", "a", "s", "insight"),
        )
        assert (row.occurred_at, row.expires_at) == (1683554161, 2208988800)
        assert np.linalg.norm(row.vector) == pytest.approx(1, abs=1e-5)
        row = rows[bare]
        assert (row.user_id, row.agent_id, row.session_id, row.occurred_at, row.expires_at) == ("", "", "", -1, NEVER)

    async def test_the_first_write_makes_the_collection(self, desk: MemoryDesk, drainer: Drainer) -> None:
        await desk.write("one")
        assert (await desk.generation()).state == "absent"
        assert await drainer.drain(desk.tenant) == DrainReport(indexed=1)
        assert (await desk.generation()).state == "ready"
        [row] = await desk.outbox()
        assert row.done

    async def test_a_memory_is_done_only_when_all_its_chunks_are_sent(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex
    ) -> None:
        index.batch_rows = 4
        await desk.write("short", "word " * 400, "shorter")  # 400 words make 12 windows
        report = await drainer.drain(desk.tenant)
        assert report.indexed == 3
        assert max(len(batch) for batch in index.upserts) == 4
        assert await stored(desk, index) == await desk.current_keys()
        assert len(await desk.current_keys()) == 14

    async def test_a_row_done_is_fresh_for_ten_seconds(
        self, desk: MemoryDesk, drainer: Drainer, database: Database
    ) -> None:
        ids = await desk.write("one")
        async with database.tenant(desk.tenant) as connection:
            assert await pending_of(desk.tenant, connection, [*ids, uuid4()]) == 1
        await drainer.drain(desk.tenant)
        async with database.tenant(desk.tenant) as connection:
            assert await pending_of(desk.tenant, connection, ids) == 0
            fresh_s = await connection.fetchval("SELECT extract(epoch FROM fresh_until - done_at)::float8 FROM outbox")
        assert fresh_s == pytest.approx(LIMITS.fresh_s, abs=0.01)

    async def test_an_edit_before_the_drain_sends_the_new_revision_alone(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex
    ) -> None:
        [memory_id] = await desk.write("one")
        await desk.edit(memory_id, content="two")
        await desk.edit(memory_id, user_id="u2")
        await drainer.drain(desk.tenant)
        assert await stored(desk, index) == {IndexKey(memory_id, 3, 0)}
        assert [row.key for batch in index.upserts for row in batch] == [IndexKey(memory_id, 3, 0)]

    async def test_a_row_that_the_index_cannot_take_fails_alone(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex, database: Database
    ) -> None:
        ids = await desk.write("one", "two", "three")
        async with database.tenant(desk.tenant) as connection:
            await connection.execute(
                "UPDATE chunk SET embedding = $2 WHERE memory_id = $1", ids[1], pack_vector(np.ones(3, np.float32))
            )
        report = await drainer.drain(desk.tenant)
        assert (report.indexed, report.refused, report.more) == (2, 1, False)
        assert {key.memory_id for key in await stored(desk, index)} == {ids[0], ids[2]}
        [failed] = [row for row in await desk.outbox() if not row.done]
        assert failed.memory_id == ids[1]
        assert failed.error is not None
        assert "64 finite numbers" in failed.error

    async def test_one_tenants_drain_touches_no_other(
        self, desk: MemoryDesk, drainer: Drainer, database: Database
    ) -> None:
        await desk.write("one")
        other = TenantId(uuid4())
        assert await drainer.drain(other) == DrainReport()
        assert [row.done for row in await desk.outbox()] == [False]
        async with database.tenant(other) as connection:
            assert not await has_due_work(other, connection)


class TestEmbedding:
    async def test_texts_without_vectors_are_embedded_with_date_and_actor(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex, database: Database
    ) -> None:
        fields: dict[str, Any] = {"actor": "Melanie", "occurred_at": datetime(2023, 5, 8, 13, 56, tzinfo=UTC)}
        [known] = await desk.write("painted a sunrise " * 40, **fields)
        [late] = await desk.write("painted a sunrise " * 40, embedded=False, **fields)
        report = await drainer.drain(desk.tenant)
        assert (report.indexed, report.embedded) == (2, 1)
        async with database.tenant(desk.tenant) as connection:
            rows = await connection.fetch(
                "SELECT memory_id, n, span_start, span_end, embedding FROM chunk ORDER BY n",
            )
        chunks = {
            memory: [
                (row["n"], row["span_start"], row["span_end"], row["embedding"].tobytes())
                for row in rows
                if row["memory_id"] == memory
            ]
            for memory in (known, late)
        }
        assert len(chunks[known]) > 1
        assert chunks[late] == chunks[known]
        assert await stored(desk, index) == await desk.current_keys()

    async def test_embedder_away_holds_up_only_what_needs_it(
        self, desk: MemoryDesk, database: Database, index: RecordingIndex, embedder: HashEmbedder
    ) -> None:
        drainer = Drainer(database, index, embedder, limits=msgspec.structs.replace(LIMITS, embed_texts=10))
        raw = await desk.write(*(f"raw {n}" for n in range(40)), embedded=False)
        ready = await desk.write("ready")
        embedder.down = True
        index.batch_rows = 10
        report = await drainer.drain(desk.tenant)
        assert (report.obstacle, report.indexed, report.more) == ("embedding", 1, False)
        assert {key.memory_id for key in await stored(desk, index)} == set(ready)
        tried = [row for row in await desk.outbox() if row.attempts]
        assert 0 < len(tried) <= 10
        embedder.down = False
        await desk.pass_time()
        assert (await drainer.drain(desk.tenant)).indexed == len(raw)
        assert await stored(desk, index) == await desk.current_keys()

    async def test_a_poison_text_fails_with_its_reason_and_the_others_go_on(
        self, desk: MemoryDesk, drainer: Drainer
    ) -> None:
        ids = await desk.write("one", f"two {POISON}", "three", embedded=False)
        report = await drainer.drain(desk.tenant)
        assert (report.indexed, report.refused) == (2, 1)
        [failed] = [row for row in await desk.outbox() if not row.done]
        assert (failed.memory_id, failed.error) == (ids[1], "is poison, as the test asked for")
        assert await drainer.drain(desk.tenant) == DrainReport()

    async def test_vectors_of_another_length_fail_with_a_reason(
        self, desk: MemoryDesk, database: Database, index: RecordingIndex
    ) -> None:
        await desk.write("one", embedded=False)
        report = await Drainer(database, index, HashEmbedder(dim=32), limits=LIMITS).drain(desk.tenant)
        assert report.refused == 1
        [row] = await desk.outbox()
        assert row.error == "the embedder gave vectors of the shape (1, 32); the index takes 64"


class TestDeletes:
    async def test_every_chunk_goes_twice_and_then_never_again(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex
    ) -> None:
        [gone] = await desk.write("word " * 100)
        [kept] = await desk.write("kept")
        await drainer.drain(desk.tenant)
        count = len([key for key in await stored(desk, index) if key.memory_id == gone])
        assert count > 1
        await desk.remove(gone)
        assert (await drainer.drain(desk.tenant)).removed == 1
        assert await stored(desk, index) == {IndexKey(kept, 1, 0)}
        assert await drainer.drain(desk.tenant) == DrainReport()  # the second time has not come
        await desk.pass_time()
        assert (await drainer.drain(desk.tenant)).removed == 1
        await desk.pass_time()
        assert await drainer.drain(desk.tenant) == DrainReport()
        assert [sorted(keys) for keys in index.deletes] == [[IndexKey(gone, 1, n) for n in range(count)]] * 2

    async def test_the_second_time_comes_after_a_late_call_can_take_effect(
        self, desk: MemoryDesk, drainer: Drainer, database: Database
    ) -> None:
        [gone] = await desk.write("gone")
        await desk.remove(gone)
        await drainer.drain(desk.tenant)
        async with database.tenant(desk.tenant) as connection:
            wait_s = await connection.fetchval(
                "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM outbox"
            )
        assert LIMITS.rpc_timeout_s < wait_s <= 2 * LIMITS.rpc_timeout_s

    async def test_an_edit_removes_the_old_revision(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex
    ) -> None:
        [memory_id] = await desk.write("word " * 100)
        await drainer.drain(desk.tenant)
        await desk.edit(memory_id, content="short now")
        await drainer.drain(desk.tenant)
        assert await stored(desk, index) == {IndexKey(memory_id, 2, 0)}


class TestIndexAway:
    async def test_the_tenant_is_left_alone_for_longer_each_time_and_then_catches_up(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex, database: Database
    ) -> None:
        await desk.write("one", "two")
        index.down = True
        pauses: list[float] = []
        for _ in range(6):
            report = await drainer.drain(desk.tenant)
            assert (report.obstacle, report.indexed, report.more) == ("index", 0, False)
            assert not (await drainer.drain(desk.tenant)).taken
            async with database.tenant(desk.tenant) as connection:
                pauses.append(
                    await connection.fetchval(
                        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM lease"
                    )
                )
            await desk.pass_time()
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 30], abs=0.5)
        index.down = False
        assert (await drainer.drain(desk.tenant)).indexed == 2

    async def test_a_collection_that_was_lost_is_made_again_with_all_that_was_in_it(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex
    ) -> None:
        await desk.write("one")
        await drainer.drain(desk.tenant)
        await index.drop(desk.tenant, await desk.generation())
        await desk.write("two")
        assert (await drainer.drain(desk.tenant)).obstacle == "index"
        await desk.pass_time()
        assert (await drainer.drain(desk.tenant)).indexed == 2
        assert await stored(desk, index) == await desk.current_keys()

    async def test_other_tenants_go_on_while_one_cannot_have_its_collection(
        self, desk: MemoryDesk, drainer: Drainer, index: RecordingIndex, database: Database, embedder: HashEmbedder
    ) -> None:
        generation = await desk.generation()
        broken = Generation(
            tenant=desk.tenant,
            number=1,
            model="hash",
            dim=3,
            index_type="HNSW",
            index_params={},
            state="absent",
        )
        await index.ensure(desk.tenant, broken)  # of another shape than the generation asks for
        await desk.write("one")
        assert (await drainer.drain(desk.tenant)).obstacle == "index"
        assert generation.state == (await desk.generation()).state == "absent"
        other = await _another_tenant(database, embedder)
        await other.write("two")
        assert (await drainer.drain(other.tenant)).indexed == 1


class TestSlices:
    async def test_a_slice_ends_in_time_and_says_that_there_is_more(
        self, desk: MemoryDesk, database: Database, index: RecordingIndex, embedder: HashEmbedder
    ) -> None:
        index.batch_rows = 5
        ids = await desk.write(*(f"text {n}" for n in range(12)))
        begun = iter([False, False, True])
        limits = msgspec.structs.replace(LIMITS, embed_texts=5)
        drainer = Drainer(database, index, embedder, limits=limits, stopping=lambda: next(begun, False))
        report = await drainer.drain(desk.tenant)
        assert (report.indexed, report.more) == (5, True)
        assert [key.memory_id for key in sorted(await stored(desk, index))] == sorted(ids[:5])
        report = await drainer.drain(desk.tenant)
        assert (report.indexed, report.more) == (7, False)

    async def test_a_write_during_the_last_moments_is_not_left_behind(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder
    ) -> None:
        class LateWrite(RecordingIndex):
            async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
                await super().upsert(tenant, generation, rows)
                if len(self.upserts) == 1:
                    await desk.write("late")

        ends = iter([False, False, True, True])
        drainer = Drainer(database, LateWrite(), embedder, limits=LIMITS, stopping=lambda: next(ends, True))
        await desk.write("one")
        assert (await drainer.drain(desk.tenant)).more

    async def test_a_kick_is_forgotten_where_the_outbox_is_looked_at_afterwards_and_only_there(
        self, desk: MemoryDesk, database: Database, embedder: HashEmbedder
    ) -> None:
        steps: list[str] = []

        async def clear_kick(tenant: TenantId) -> None:
            async with database.tenant(tenant) as connection:
                held = await connection.fetchval("SELECT expires_at > clock_timestamp() FROM lease")
            steps.append("cleared, held" if held else "cleared, free")
            if not held:  # a write whose kick was the last to be swallowed
                await desk.write("late")

        class Watched(RecordingIndex):
            async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
                await super().upsert(tenant, generation, rows)
                steps.append("sent")
                assert not (await drainer.drain(tenant)).taken

        drainer = Drainer(database, Watched(), embedder, limits=LIMITS, clear_kick=clear_kick)
        await desk.write("one")
        assert (await drainer.drain(desk.tenant)).more
        assert steps == ["cleared, held", "sent", "cleared, free"]

    async def test_a_lease_shorter_than_a_call_is_refused(
        self, database: Database, index: RecordingIndex, embedder: HashEmbedder
    ) -> None:
        with pytest.raises(ValueError, match="cannot cover"):
            Drainer(database, index, embedder, limits=DrainLimits(lease_s=20, rpc_timeout_s=20))


async def _another_tenant(database: Database, embedder: HashEmbedder) -> MemoryDesk:
    tenant = TenantId(uuid4())
    async with database.tenant(tenant) as connection:
        await connection.execute("INSERT INTO tenant (id, name) VALUES ($1, $2)", tenant, f"other {tenant}")
        await connection.execute(
            "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params)"
            " VALUES ($1, 1, 'hash', 64, 'HNSW', '{}'::jsonb)",
            tenant,
        )
    return MemoryDesk(database, tenant, embedder)

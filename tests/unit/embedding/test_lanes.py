"""Who is served when: lanes, tenants in turn, limits, and work that nobody waits for any more."""

import asyncio
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.tenancy import TenantId
from memplane_embedding.pool import JOB_LANES, JobLane, WorkerPool

pytestmark = pytest.mark.anyio

A, B, C = (TenantId(uuid4()) for _ in range(3))


class Bench:
    """A pool of one thread that is held up until `open`, and the order in which it then did its work."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.done: list[str] = []
        self._gate = threading.Event()
        self._held = threading.Event()
        self._first = pool.submit(TenantId(uuid4()), "query", [self._hold])

    def _hold(self) -> None:
        self._held.set()
        self._gate.wait(10)

    def submit(self, tenant: TenantId, lane: JobLane, *names: str) -> list[asyncio.Future[None]]:
        def work(name: str) -> Callable[[], None]:
            return lambda: self.done.append(name)

        return self.pool.submit(tenant, lane, [work(name) for name in names])

    def open(self) -> None:
        self._gate.set()

    async def held(self) -> None:
        assert await asyncio.to_thread(self._held.wait, 10)


@contextmanager
def bench(*, lane_limit: int = 100, rerank_limit: int = 100) -> Generator[Bench]:
    pool = WorkerPool(workers=1, lane_limit=lane_limit, rerank_limit=rerank_limit)
    made = Bench(pool)
    try:
        yield made
    finally:
        made.open()
        pool.close()


class TestOrder:
    async def test_queries_go_before_writes_before_bulk(self) -> None:
        with bench() as its:
            await its.held()
            waits = [*its.submit(A, "bulk", "b1", "b2"), *its.submit(A, "write", "w1"), *its.submit(A, "query", "q1")]
            its.open()
            await asyncio.gather(*waits)
            assert its.done == ["q1", "w1", "b1", "b2"]

    async def test_tenants_take_turns_within_a_lane(self) -> None:
        with bench() as its:
            await its.held()
            waits = its.submit(A, "write", *(f"a{n}" for n in range(4)))
            waits += its.submit(B, "write", "b0", "b1")
            waits += its.submit(C, "write", "c0")
            its.open()
            await asyncio.gather(*waits)
            assert its.done == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


class TestReranking:
    async def test_only_thread_reranks_before_bulk_work_alone(self) -> None:
        with bench() as its:
            await its.held()
            waits = [*its.submit(A, "bulk", "b"), *its.submit(A, "rerank", "r1", "r2")]
            waits += [*its.submit(A, "write", "w"), *its.submit(A, "query", "q")]
            its.open()
            await asyncio.gather(*waits)
            assert its.done == ["q", "w", "r1", "r2", "b"]

    async def test_goes_before_writes_on_all_threads_but_one(self) -> None:
        pool = WorkerPool(workers=2, lane_limit=100)
        release = threading.Event()
        begun = queue.SimpleQueue[str]()

        def work(name: str) -> Callable[[], None]:
            def run() -> None:
                begun.put(name)
                release.wait(10)

            return run

        first, second = threading.Event(), threading.Event()
        try:
            held = pool.submit(B, "query", [lambda: first.wait(10), lambda: second.wait(10)])
            waits = pool.submit(A, "write", [work("w1"), work("w2")])
            waits += pool.submit(A, "rerank", [work("r1"), work("r2")])
            first.set()
            assert await asyncio.to_thread(begun.get, timeout=10) == "r1"
            second.set()
            assert await asyncio.to_thread(begun.get, timeout=10) == "w1"
            release.set()
            await asyncio.gather(*held, *waits)
        finally:
            for event in (first, second, release):
                event.set()
            pool.close()

    async def test_has_a_limit_of_its_own(self) -> None:
        with bench(rerank_limit=2) as its:
            await its.held()
            its.submit(A, "rerank", "r1", "r2")
            with pytest.raises(EmbeddingUnavailable, match="2 texts wait in the rerank lane"):
                its.submit(B, "rerank", "r3")
            assert its.submit(B, "query", "q1", "q2", "q3")


class TestAbandoned:
    async def test_cancelled_work_is_never_done_and_frees_its_place(self) -> None:
        with bench(lane_limit=4) as its:
            await its.held()
            gone = its.submit(A, "write", "gone1", "gone2")
            stays = its.submit(A, "write", "stays")
            for future in gone:
                future.cancel()
            await asyncio.sleep(0)
            assert its.pool.waiting("write") == 1
            more = its.submit(B, "write", "more1", "more2")
            its.open()
            await asyncio.gather(*stays, *more)
            assert sorted(its.done) == ["more1", "more2", "stays"]
            assert all(its.pool.waiting(lane) == 0 for lane in JOB_LANES)


class TestLimits:
    async def test_full_lane_says_when_to_come_back_and_takes_nothing(self) -> None:
        with bench(lane_limit=3) as its:
            await its.held()
            its.submit(A, "write", "1", "2")
            with pytest.raises(EmbeddingUnavailable, match="2 texts wait in the write lane") as caught:
                its.submit(B, "write", "3", "4")
            assert caught.value.retry_after is not None
            assert 1 <= caught.value.retry_after <= 60
            assert its.pool.waiting("write") == 2

    async def test_other_lanes_have_room_of_their_own(self) -> None:
        with bench(lane_limit=1) as its:
            await its.held()
            its.submit(A, "bulk", "b")
            waits = its.submit(A, "query", "q")
            its.open()
            await asyncio.gather(*waits)
            assert its.done[0] == "q"

    async def test_tenant_beside_others_may_have_half_of_a_lane(self) -> None:
        with bench(lane_limit=8) as its:
            await its.held()
            its.submit(B, "write", "b")
            its.submit(A, "write", *"1234")
            with pytest.raises(EmbeddingUnavailable):
                its.submit(A, "write", "5")
            assert len(its.submit(C, "write", "c1", "c2")) == 2


class TestFailures:
    async def test_error_of_one_job_reaches_its_waiter_alone(self) -> None:
        def fail() -> None:
            raise ValueError("broken text")

        with bench() as its:
            bad = its.pool.submit(A, "write", [fail])
            good = its.submit(A, "write", "good")
            its.open()
            with pytest.raises(ValueError, match="broken text"):
                await bad[0]
            await good[0]
            assert its.done == ["good"]

    async def test_closing_fails_what_waits_and_refuses_more(self) -> None:
        pool = WorkerPool(workers=1, lane_limit=10)
        its = Bench(pool)
        await its.held()
        waiting = its.submit(A, "write", "never")
        closing = asyncio.create_task(asyncio.to_thread(pool.close))
        with pytest.raises(EmbeddingUnavailable):
            await waiting[0]
        its.open()
        await closing
        with pytest.raises(EmbeddingUnavailable):
            its.submit(A, "write", "late")
        assert its.done == []

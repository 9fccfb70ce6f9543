"""Worker threads behind lanes: queries, reranking, writes, bulk work; and tenants in turn within a lane.

A pair to rerank costs as much as several queries to embed. So reranking comes after them, its lane is short, and where
something else waits it leaves one thread to that.
"""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

from memplane_core.domain.embedding import Lane
from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.tenancy import TenantId

T = TypeVar("T")

JobLane = Lane | Literal["rerank"]

LANES: Final[tuple[Lane, ...]] = ("query", "write", "bulk")
JOB_LANES: Final[tuple[JobLane, ...]] = ("query", "rerank", "write", "bulk")
_WRITES_FIRST: Final[tuple[JobLane, ...]] = ("query", "write", "rerank", "bulk")


class Job(Generic[T]):
    """Work that waits for a thread, and the future of what it returns."""

    __slots__ = ("dropped", "future", "lane", "started", "work")

    def __init__(self, work: Callable[[], T], future: "asyncio.Future[T]", lane: JobLane) -> None:
        self.work = work
        self.future = future
        self.lane: JobLane = lane
        self.started = False
        self.dropped = False


class LaneQueue:
    """Jobs of all lanes and tenants in the order they are to be done. Not safe for threads by itself."""

    def __init__(self) -> None:
        self._lanes: dict[JobLane, OrderedDict[TenantId, deque[Job[Any]]]] = {lane: OrderedDict() for lane in JOB_LANES}
        self._waiting: dict[tuple[JobLane, TenantId], int] = {}
        self._sizes: dict[JobLane, int] = dict.fromkeys(JOB_LANES, 0)

    def size(self, lane: JobLane) -> int:
        """Jobs that wait in a lane, dropped ones not counted."""
        return self._sizes[lane]

    def share(self, tenant: TenantId, lane: JobLane) -> int:
        """How many of them are the tenant's."""
        return self._waiting.get((lane, tenant), 0)

    def push(self, tenant: TenantId, job: Job[Any]) -> None:
        """Put a job behind the tenant's others of its lane."""
        self._lanes[job.lane].setdefault(tenant, deque()).append(job)
        self._count(tenant, job.lane, 1)

    def pop(self, lanes: Sequence[JobLane] = JOB_LANES) -> Job[Any] | None:
        """The next job, marked as started: of the first lane that has any, of the tenant that has waited longest."""
        for lane in lanes:
            tenants = self._lanes[lane]
            while tenants:
                tenant, jobs = tenants.popitem(last=False)
                while jobs and jobs[0].dropped:
                    jobs.popleft()
                if not jobs:
                    continue
                job = jobs.popleft()
                if jobs:
                    tenants[tenant] = jobs
                self._count(tenant, lane, -1)
                job.started = True
                return job
        return None

    def drop(self, tenant: TenantId, job: Job[Any]) -> None:
        """Forget a job that has not been started; it is nobody's any more."""
        if not job.started and not job.dropped:
            job.dropped = True
            self._count(tenant, job.lane, -1)

    def _count(self, tenant: TenantId, lane: JobLane, change: int) -> None:
        self._sizes[lane] += change
        left = self.share(tenant, lane) + change
        if left:
            self._waiting[lane, tenant] = left
        else:
            self._waiting.pop((lane, tenant), None)


class WorkerPool:
    """Threads that do the jobs of a `LaneQueue`. `submit` belongs to one event loop.

    Args:
        workers: Threads.
        lane_limit: Most jobs that may wait in a lane; a single tenant may have half of it.
        rerank_limit: The same for the lane of pairs to rerank.
    """

    def __init__(self, *, workers: int, lane_limit: int, rerank_limit: int = 200) -> None:
        self._limits: dict[JobLane, int] = {**dict.fromkeys(LANES, lane_limit), "rerank": rerank_limit}
        self._workers = workers
        self._reranking = 0
        self._queue = LaneQueue()
        self._ready = threading.Condition()
        self._closed = False
        self._job_seconds: dict[JobLane, float] = dict.fromkeys(JOB_LANES, 0.01)
        self._threads = [threading.Thread(target=self._run, name=f"embed-{n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    def waiting(self, lane: JobLane) -> int:
        """Jobs that wait in a lane."""
        with self._ready:
            return self._queue.size(lane)

    def submit(
        self, tenant: TenantId, lane: JobLane, works: Sequence[Callable[[], T]], *, admitted: bool = False
    ) -> "list[asyncio.Future[T]]":
        """Queue all of `works` or none. A future that is cancelled before its work has begun takes it back.

        Args:
            tenant: Whose turn it uses.
            lane: How urgent it is.
            works: Run in worker threads, each in one go.
            admitted: For the rest of something already begun, which no limit may stop half-way.

        Raises:
            EmbeddingUnavailable: The lane is full; with the seconds after which it should have room.
        """
        loop = asyncio.get_running_loop()
        jobs = [Job(work, loop.create_future(), lane) for work in works]
        with self._ready:
            if self._closed:
                raise EmbeddingUnavailable("the embedding service is stopping", retry_after=1)
            if not admitted:
                self._check_room(tenant, lane, len(jobs))
            for job in jobs:
                self._queue.push(tenant, job)
            self._ready.notify(len(jobs))
        for job in jobs:
            job.future.add_done_callback(lambda future, job=job: self._forget(tenant, job, future))
        return [job.future for job in jobs]

    def close(self) -> None:
        """Finish what has begun, fail what waits, end the threads."""
        with self._ready:
            self._closed = True
            while (job := self._queue.pop()) is not None:
                _deliver(job, None, EmbeddingUnavailable("the embedding service is stopping", retry_after=1))
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _check_room(self, tenant: TenantId, lane: JobLane, count: int) -> None:
        size, limit = self._queue.size(lane), self._limits[lane]
        full = size + count > limit
        # Alone, a tenant may use the whole lane: one large batch is not a reason to refuse it.
        greedy = size > self._queue.share(tenant, lane) and self._queue.share(tenant, lane) + count > limit // 2
        if full or greedy:
            seconds = max(size, 1) * self._job_seconds[lane] / self._workers
            raise EmbeddingUnavailable(
                f"{size} texts wait in the {lane} lane already", retry_after=min(max(1, round(seconds)), 60)
            )

    def _forget(self, tenant: TenantId, job: Job[Any], future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            with self._ready:
                self._queue.drop(tenant, job)

    def _run(self) -> None:
        while (job := self._take()) is not None:
            began = time.perf_counter()
            _perform(job)
            self._done(job, time.perf_counter() - began)

    def _take(self) -> Job[Any] | None:
        """Wait for the next job; None once closed."""
        with self._ready:
            while (job := self._next()) is None:
                if self._closed:
                    return None
                self._ready.wait()
            self._reranking += job.lane == "rerank"
            return job

    def _next(self) -> Job[Any] | None:
        others_free = self._reranking < self._workers - 1
        return self._queue.pop(JOB_LANES if others_free else _WRITES_FIRST)

    def _done(self, job: Job[Any], seconds: float) -> None:
        with self._ready:
            self._reranking -= job.lane == "rerank"
            self._job_seconds[job.lane] += 0.05 * (seconds - self._job_seconds[job.lane])


def _perform(job: Job[Any]) -> None:
    try:
        result, error = job.work(), None
    except Exception as raised:  # noqa: BLE001 - handed to whoever waits for the job
        result, error = None, raised
    _deliver(job, result, error)


def _deliver(job: Job[Any], result: object, error: Exception | None) -> None:
    """Hand what came of a job to its event loop, from any thread."""

    def settle() -> None:
        if job.future.done():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
            job.future.exception()  # whoever waits gets it all the same; nobody waiting is no fault

    try:
        job.future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has ended, and with it whoever waited
        return

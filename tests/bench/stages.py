"""Where the time of one search and one write goes: the retrieval service's own parts, run in this process and timed.

Statements are timed by asyncpg itself, calls to services where all of ours go through; nothing is left out.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, Protocol, cast
from unittest.mock import patch

import asyncpg
import httpx2
import msgspec
from tests.bench.ground import WHEN, Ground, in_environment
from tests.bench.results import Calls
from tests.bench.searches import GATEWAY, QUESTIONS, TOP_K
from tests.bench.texts import question, sentence, user
from tests.bench.timing import Stopwatch

from memplane_core.clients.http import HttpAnswer, ServiceHttp
from memplane_core.contracts.filters import Filters
from memplane_core.contracts.memories import MemoryWrite, SearchRequest
from memplane_gateway.app import create_app
from memplane_gateway.settings import GatewaySettings
from memplane_retrieval import search as search_module
from memplane_retrieval.app import Ports, open_real_ports
from memplane_retrieval.embedding import Chunker
from memplane_retrieval.generations import Generations
from memplane_retrieval.nomination import Nominator
from memplane_retrieval.reranking import Reranking
from memplane_retrieval.search import Searcher
from memplane_retrieval.write import Writer

EMBED: Final = "embedding"
MILVUS: Final = "Milvus search"
WORDS: Final = "words, in the same transaction"
FRESH: Final = "fresh rows statement"
POOL_BESIDE: Final = "pool of words and fresh rows, beside the Milvus search"
POOL: Final = "pool of what is left"
READ: Final = "read statement"
INSERT: Final = "insert statement"
BEGIN: Final = "BEGIN with the tenant"
COMMIT: Final = "COMMIT"
RANK: Final = "ranking"
KICK: Final = "kick"
TOTAL: Final = "all in the service, without HTTP"
REST: Final = "rest of the service's Python"

_MARKS: Final = (
    ("INSERT INTO memory ", INSERT),
    ("WITH waiting AS", FRESH),
    ("nominate_by_words", WORDS),
    ("AS index_state", READ),
    ("AS question", POOL),
    ("FROM tenant t JOIN generation g", "generation look-up"),
    ("find_api_key", "key look-up"),
)
_SEARCH: Final = (FRESH, WORDS, POOL_BESIDE, MILVUS, POOL, RANK, READ)
IN_THE_SERVICE: Final = (TOTAL, EMBED, BEGIN, *_SEARCH, INSERT, COMMIT, KICK, REST)
"""Stages in their order."""

_SENT: Final = frozenset((MILVUS, FRESH, WORDS, POOL_BESIDE, POOL, READ, INSERT, BEGIN, COMMIT))
_BESIDE: Final = (FRESH, WORDS, POOL_BESIDE)
_WARM_UP: Final = 5

_ANEW: Final[Filters] = {"memory_type": "experience"}
"""Matches all, and is another question to the index than those before."""

Parts = list[tuple[str, float]]


class _Logged(Protocol):
    """What asyncpg tells of a statement."""

    @property
    def query(self) -> str: ...

    @property
    def elapsed(self) -> float: ...


class Timed(msgspec.Struct, frozen=True):
    """Operations of one kind: each with its parts and its whole time in seconds."""

    operations: list[Parts]
    totals: list[float]

    def stages(self) -> dict[str, float]:
        """Median milliseconds by stage; a stage that comes twice in an operation counts with its sum."""
        each = [_sums(parts, total) for parts, total in zip(self.operations, self.totals, strict=True)]
        names = dict.fromkeys(name for sums in each for name in sums if not name.startswith("HTTP"))
        return {name: statistics.median(sums.get(name, 0.0) for sums in each) * 1000 for name in names}

    def calls(self, operation: str, *, service: str) -> Calls:
        """What was sent, and how regularly."""
        return calls_of(operation, self.operations, service=service)


def calls_of(operation: str, operations: Sequence[Parts], *, service: str) -> Calls:
    """What was sent in most of the operations."""
    sent = [
        Counter(name for name, _ in parts if name in _SENT or name.startswith(("HTTP", "statement")))
        for parts in operations
    ]
    usual = max(sent, key=sent.count)
    return Calls(operation=operation, service=service, sent=dict(usual), usual=sent.count(usual), n=len(sent))


def _sums(parts: Parts, total: float) -> dict[str, float]:
    """By name, with the rest: what runs beside the Milvus search counts only where it takes longer."""
    sums: dict[str, float] = {}
    for name, seconds in parts:
        sums[name] = sums.get(name, 0.0) + seconds
    serial = sum(seconds for name, seconds in sums.items() if not name.startswith("HTTP"))
    serial -= min(sum(sums.get(name, 0.0) for name in _BESIDE), sums.get(MILVUS, 0.0))
    return {**sums, REST: max(0.0, total - serial), TOTAL: total}


def _told_apart(parts: Parts) -> Parts:
    """With the two reads of a pool by their places: one that ended before the index answered ran beside it."""
    answered = next((n for n, (name, _) in enumerate(parts) if name == MILVUS), 0)
    return [(POOL_BESIDE if name == POOL and n < answered else name, took) for n, (name, took) in enumerate(parts)]


def statement_name(query: str) -> str:
    """Which of ours a statement is."""
    text = " ".join(query.split())
    if text.startswith("BEGIN"):
        return BEGIN
    if text in {"COMMIT", "ROLLBACK"}:
        return text
    return next((name for mark, name in _MARKS if mark in text), f"statement {text[:40]}")


@contextmanager
def noting_calls(watch: Stopwatch) -> Any:
    """Note every statement of connections opened from now on, and every call to a service, in this process."""
    create_pool = cast("Callable[..., asyncpg.Pool]", asyncpg.create_pool)  # pyright: ignore[reportUnknownMemberType]
    call = ServiceHttp.call

    def logged_pool(*args: Any, init: Callable[[Any], Any], **kwargs: Any) -> asyncpg.Pool:
        async def prepared(connection: asyncpg.Connection) -> None:
            await init(connection)
            connection.add_query_logger(note)

        return create_pool(*args, init=prepared, **kwargs)

    def note(query: _Logged) -> None:
        watch.add(statement_name(query.query), query.elapsed)

    async def noted_call(http: ServiceHttp, method: str, path: str, **kwargs: Any) -> HttpAnswer:
        began = time.perf_counter()
        try:
            return await call(http, method, path, **kwargs)
        finally:
            watch.add(f"HTTP {method} {path}", time.perf_counter() - began)

    with patch.object(asyncpg, "create_pool", logged_pool), patch.object(ServiceHttp, "call", noted_call):
        yield


class Bench:
    """The parts of a retrieval service over the ground's stores, with a watch on them."""

    def __init__(self, ground: Ground, ports: Ports, watch: Stopwatch) -> None:
        settings = ground.settings
        generations = Generations(ports.database, ttl_s=settings.search.generation_cache_s)
        self._ground = ground
        self._watch = watch
        self._searcher = Searcher(
            ports.database,
            Nominator(ports.index),
            ports.embedder,
            reranking=Reranking(ports.reranker, timeout_s=settings.search.rerank_timeout_s),
            generations=generations,
            touches=ports.touches,
            settings=settings.search,
        )
        self._writer = Writer(ports.database, generations, Chunker(ports.embedder, settings.write), ports.kicker)

    async def search(self, request: SearchRequest) -> object:
        """One search."""
        return await self._searcher.search(self._ground.principal, request)

    async def write(self, memory: MemoryWrite) -> object:
        """One write."""
        return await self._writer.write(self._ground.principal, [memory], batch=False, fingerprint=None)

    async def searches(self, queries: Sequence[str], *, where: Filters | None = None) -> Timed:
        """One after another, anywhere in the tenant."""
        requests = [SearchRequest(query=query, top_k=TOP_K, filters=where or {}) for query in queries]
        return await self._timed([lambda request=request: self.search(request) for request in requests])

    async def cached_searches(self, count: int) -> Timed:
        """Searches of questions that were asked before, though not of the index."""
        queries = [question(n) for n in range(min(QUESTIONS, _WARM_UP + count))]
        for query in queries:
            await self.search(SearchRequest(query=query, top_k=1, candidates=1, filters=_ANEW))
        return await self.searches(queries, where=_ANEW)

    async def new_searches(self, count: int) -> Timed:
        """Searches of questions that nobody has asked yet."""
        return await self.searches([f"And {question(n)} Asked {n} times." for n in range(count)])

    async def writes(self, numbers: range) -> Timed:
        """Single writes of sentences that have been embedded, and have not been written for this user."""
        memories = [MemoryWrite(content=sentence(n), user_id=f"{user(n)} in here", occurred_at=WHEN) for n in numbers]
        return await self._timed([lambda memory=memory: self.write(memory) for memory in memories])

    async def _timed(self, operations: Sequence[Callable[[], Any]]) -> Timed:
        found = Timed([], [])
        for n, operation in enumerate(operations):
            self._watch.take()
            began = time.perf_counter()
            await operation()
            total = time.perf_counter() - began
            await asyncio.sleep(0)  # asyncpg tells its loggers in the next round of the loop
            if n >= _WARM_UP:
                found.operations.append(_told_apart(self._watch.take()))
                found.totals.append(total)
        return found


@asynccontextmanager
async def bench_on(ground: Ground) -> AsyncGenerator[Bench]:
    """Everything as the service opens it, then wrapped."""
    watch = Stopwatch()
    async with AsyncExitStack() as closing:
        closing.enter_context(noting_calls(watch))
        ports = await open_real_ports(ground.settings, closing)
        embedder, index, kicker = cast("Any", ports.embedder), cast("Any", ports.index), cast("Any", ports.kicker)
        for part, method, name in (
            (embedder, "embed_query", EMBED),
            (embedder, "embed_passages", EMBED),
            (index, "search", MILVUS),
        ):
            closing.enter_context(patch.object(part, method, watch.around(name, getattr(part, method))))
        closing.enter_context(patch.object(kicker, "kick", watch.around_plain(KICK, kicker.kick)))
        closing.enter_context(patch.object(search_module, "rank", watch.around_plain(RANK, search_module.rank)))
        yield Bench(ground, ports, watch)


async def gateway_calls(ground: Ground, numbers: range) -> list[Calls]:
    """What the gateway, run in this process, sends for searches and writes."""
    watch = Stopwatch()
    with noting_calls(watch):
        app = in_environment(ground.stack, lambda: create_app(GatewaySettings.load()))
        async with app.lifespan():
            transport = httpx2.ASGITransport(app=app)
            headers = {"Authorization": f"Bearer {ground.given.key}", "Content-Type": "application/json"}
            async with httpx2.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:

                async def noted(path: str, body: msgspec.Struct) -> Parts:
                    watch.take()
                    (await client.post(path, content=msgspec.json.encode(body))).raise_for_status()
                    await asyncio.sleep(0)
                    return watch.take()

                searches = [
                    await noted("/v1/memories/search", SearchRequest(query=question(n % QUESTIONS))) for n in numbers
                ]
                writes = [
                    await noted("/v1/memories", MemoryWrite(content=sentence(n), user_id=user(n))) for n in numbers
                ]
    return [
        calls_of("search", searches, service=GATEWAY),
        calls_of("write", writes, service=GATEWAY),
    ]

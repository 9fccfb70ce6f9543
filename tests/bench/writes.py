"""Single writes beside a bare INSERT, and batches beside the bare embedder."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import uuid_utils.compat
from tests.bench.cpu import CpuMeter
from tests.bench.ground import WHEN, Ground
from tests.bench.results import BatchRound, Cpu, Row
from tests.bench.searches import GATEWAY, INSIDE, RETRIEVAL, rows_of
from tests.bench.texts import sentence, user
from tests.bench.timing import Turn, interleaved

from memplane_core.contracts.memories import MemoryWrite
from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.memory import head_of
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import bootstrap

PEER: Final = "bare INSERT"
WARM_UP: Final = 5
BATCH: Final = 1000
_ROUTE: Final = "/v1/memories"
_IN_BATCH: Final = "text of a batch, with its indexing"
_ALONE: Final = "text, by the embedder alone"
Write = Callable[[MemoryWrite], Awaitable[object]]
"""A write by the code of the retrieval service, in this process."""

_PLAIN: Final = """
CREATE TABLE IF NOT EXISTS bench_plain (
    id uuid PRIMARY KEY, user_id text NOT NULL, content text NOT NULL, occurred_at timestamptz NOT NULL
)
"""


@asynccontextmanager
async def worker_stopped(ground: Ground) -> AsyncGenerator[None]:
    """Nothing is indexed while the context lasts."""
    ground.stack.worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        ground.stack.worker.signal(signal.SIGCONT)


async def embed_beforehand(ground: Ground, numbers: Sequence[int]) -> None:
    """Have these sentences in the embedding service's cache, as a memory's text with its date."""
    model = (await ground.generation()).model
    head = head_of(None, WHEN)
    for n in ground.told.through(numbers, "embedding beforehand", total=len(numbers)):
        await ground.embedder.embed_passages(
            ground.tenant, [EmbedItem(sentence(n), head)], model=model, lane="write", timeout_s=30
        )


async def compared(ground: Ground, scenario: str, numbers: range, *, inside: Write) -> list[Row]:
    """Bare INSERT, inside, retrieval and gateway in turn; `numbers` have been embedded, and have not been written."""
    memories = {
        (subject, n): MemoryWrite(content=sentence(n), user_id=f"{user(n)} by {subject}", occurred_at=WHEN)
        for subject in (INSIDE, RETRIEVAL, GATEWAY)
        for n in numbers
    }
    bodies = {key: msgspec.json.encode(memory) for key, memory in memories.items()}
    plain = await bootstrap.connect(ground.stack.postgres.superuser_url())
    try:
        await plain.execute(_PLAIN)
        subjects: dict[str, Turn] = {
            # Outside of a transaction block: the statement commits by itself, which is the fastest there is.
            PEER: lambda n: plain.execute(
                "INSERT INTO bench_plain VALUES ($1, $2, $3, $4)", uuid_utils.compat.uuid7(), user(n), sentence(n), WHEN
            ),
            INSIDE: lambda n: inside(memories[INSIDE, n]),
            RETRIEVAL: lambda n: ground.retrieval.post(_ROUTE, bodies[RETRIEVAL, n]),
            GATEWAY: lambda n: ground.gateways[0].post(_ROUTE, bodies[GATEWAY, n]),
        }
        turns = ground.told.through(numbers, scenario, total=len(numbers))
        seconds = await interleaved(subjects, turns, warm_up=WARM_UP)
    finally:
        await plain.close()
    return rows_of(scenario, seconds, peer=PEER)


async def through_gateway(ground: Ground, numbers: range) -> Cpu:
    """What writes of sentences cost that have been embedded, one after another, until all are indexed."""
    meter = CpuMeter()
    for n in numbers:
        memory = MemoryWrite(content=sentence(n), user_id=user(n), occurred_at=WHEN)
        await ground.gateways[0].post(_ROUTE, msgspec.json.encode(memory))
    await ground.indexed()
    return meter.row("write, embedded before, with its indexing", n=len(numbers))


async def batches(ground: Ground, start: int, *, rounds: int) -> tuple[list[BatchRound], list[Cpu]]:
    """Rounds of new texts, each through the gateway until indexed and through the embedder alone, in changing order.

    Returns:
        The rounds, and what the last one cost: first the batch, then the embedder alone.
    """
    found: list[BatchRound] = []
    cpu: dict[str, Cpu] = {}

    async def metered(operation: str, work: Callable[[Ground, range], Awaitable[float]], numbers: range) -> float:
        meter = CpuMeter()
        speed = await work(ground, numbers)
        cpu[operation] = meter.row(operation, n=len(numbers))
        return speed

    for n in range(rounds):
        numbers = range(start + n * BATCH, start + (n + 1) * BATCH)
        batch_first = n % 2 == 0
        if batch_first:
            batch = await metered(_IN_BATCH, _batch, numbers)
            embedder = await metered(_ALONE, _embedder_alone, numbers)
        else:
            embedder = await metered(_ALONE, _embedder_alone, numbers)
            batch = await metered(_IN_BATCH, _batch, numbers)
        found.append(
            BatchRound(first="batch" if batch_first else "embedder", texts=BATCH, batch=batch, embedder=embedder)
        )
        ground.told.step(
            f"batch of {BATCH:,}: {batch:.0f} texts/s until indexed, embedder alone {embedder:.0f} texts/s"
        )
        await asyncio.sleep(1)
    return found, [cpu[_IN_BATCH], cpu[_ALONE]]


async def _batch(ground: Ground, numbers: range) -> float:
    memories = [MemoryWrite(content=sentence(n), user_id=user(n), occurred_at=WHEN) for n in numbers]
    began = time.perf_counter()
    written = await ground.write_batch(memories, wait=True)
    if any(item.index_state != "indexed" for item in written.results):
        await ground.indexed()
    return len(numbers) / (time.perf_counter() - began)


async def _embedder_alone(ground: Ground, numbers: range) -> float:
    """Asked for a tenant that has no vectors in the cache."""
    stranger = TenantId(uuid_utils.compat.uuid7())
    model = (await ground.generation()).model
    head = head_of(None, WHEN)
    items = [EmbedItem(sentence(n), head) for n in numbers]
    began = time.perf_counter()
    await ground.embedder.embed_passages(stranger, items, model=model, lane="bulk", timeout_s=60)
    return len(numbers) / (time.perf_counter() - began)

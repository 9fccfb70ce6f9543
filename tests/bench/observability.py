"""`python -m tests.bench.observability`: what metrics and traces add to a search, beside services that have neither.

Pairs of gateway and retrieval over the same stores, asked in turn. Starts all of it on free ports and stops it.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

import msgspec
import uvloop
from cyclopts import App
from rich.console import Console
from rich.table import Table
from tests.bench.ground import Door, Ground, ground_on
from tests.bench.progress import Told
from tests.bench.texts import question
from tests.bench.timing import Turn, interleaved, p50_ms, p95_ms

from memplane_core.contracts.memories import SearchRequest
from memplane_core.testing.collector import TraceCollector
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.stack import Stack

app = App(name="observability", help_format="plaintext", result_action="return_value")

NOTHING: Final = "neither"
METRICS: Final = "metrics"
SAMPLED: Final = "metrics, 5 % traced"
ALL: Final = "metrics, all traced"
_ROUTE: Final = "/v1/memories/search"
_WARM_UP: Final = 20


@app.default
def bench(*, memories: int = 2_000, rounds: int = 300) -> int:
    """Measure and print a table.

    Parameters
    ----------
    memories
        In the tenant that is searched.
    rounds
        Searches of each pair, at most 380: no question is asked twice, so that all go to the index.
    """
    console = Console()
    told = Told(console)
    told.step(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    with TraceCollector() as collector, Stack(MilvusLite(), durable=True) as stack, ExitStack() as opening:
        doors = {NOTHING: _pair(opening, stack, {}, measured=False), METRICS: _pair(opening, stack, {})}
        for name, share in ((SAMPLED, "0.05"), (ALL, "1")):
            tracing = {"MEMPLANE_TRACE__ENDPOINT": collector.url, "MEMPLANE_TRACE__SAMPLE_RATIO": share}
            doors[name] = _pair(opening, stack, tracing)
        seconds = uvloop.run(_measured(stack, doors, memories=memories, rounds=rounds, told=told))
        told.step(f"{len(collector.spans):,} spans came")
    table = Table("search through the gateway", "p50 ms", "p95 ms", "p50 more than neither, ms")
    base = p50_ms(seconds[NOTHING])
    for name, its in seconds.items():
        table.add_row(name, f"{p50_ms(its):.2f}", f"{p95_ms(its):.2f}", f"{p50_ms(its) - base:+.2f}")
    console.print(table)
    return 0


def _pair(opening: ExitStack, stack: Stack, env: dict[str, str], *, measured: bool = True) -> str:
    """The URL of a new gateway with a retrieval of its own behind it."""

    def start(module: str, settings: dict[str, str]) -> ServiceProcess:
        ways = (module,) if measured else ("tests.bench.unmeasured", module)
        return opening.enter_context(ServiceProcess(*ways, env=settings))

    retrieval = start("memplane_retrieval", stack.env | env)
    return start("memplane_gateway", stack.env | env | {"MEMPLANE_ENDPOINTS__RETRIEVAL_URL": retrieval.url}).url


async def _measured(
    stack: Stack, urls: Mapping[str, str], *, memories: int, rounds: int, told: Told
) -> dict[str, list[float]]:
    async with ground_on(stack, told=told) as ground:
        told.step(f"loading {memories:,} memories")
        await ground.load(range(memories))
        await ground.settled()
        await ground.analyzed()
        doors = {name: Door(url, lambda: ground.given.key) for name, url in urls.items()}
        try:
            return await _in_turn(ground, doors, rounds=rounds)
        finally:
            await asyncio.gather(*(door.close() for door in doors.values()))


async def _in_turn(ground: Ground, doors: Mapping[str, Door], *, rounds: int) -> dict[str, list[float]]:
    asked = rounds + _WARM_UP
    bodies = [msgspec.json.encode(SearchRequest(query=question(n), touch=False)) for n in range(asked)]
    for n in range(asked):  # so that the vector is known and the index's answer is not
        known = msgspec.json.encode(SearchRequest(query=question(n), top_k=1, candidates=1, touch=False))
        await asyncio.gather(*(door.post(_ROUTE, known) for door in doors.values()))

    def turn_of(door: Door) -> Turn:
        return lambda turn: door.post(_ROUTE, bodies[turn])

    turns = ground.told.through(range(asked), "searches", total=asked)
    return await interleaved({name: turn_of(door) for name, door in doors.items()}, turns, warm_up=_WARM_UP)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is stopped
    raise SystemExit(app())

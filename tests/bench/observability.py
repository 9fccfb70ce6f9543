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
import psutil
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
        pairs = {NOTHING: _pair(opening, stack, {}, measured=False), METRICS: _pair(opening, stack, {})}
        for name, share in ((SAMPLED, "0.05"), (ALL, "1")):
            tracing = {"MEMPLANE_TRACE__ENDPOINT": collector.url, "MEMPLANE_TRACE__SAMPLE_RATIO": share}
            pairs[name] = _pair(opening, stack, tracing)
        seconds, cpu_ms = uvloop.run(_measured(stack, pairs, memories=memories, rounds=rounds, told=told))
        told.step(f"{len(collector.spans):,} spans came")
    table = Table("search through the gateway", "p50 ms", "p95 ms", "more than neither", "CPU ms", "more than neither")
    base, base_cpu = p50_ms(seconds[NOTHING]), cpu_ms[NOTHING]
    for name, its in seconds.items():
        more, more_cpu = f"{p50_ms(its) - base:+.2f}", f"{cpu_ms[name] - base_cpu:+.2f}"
        table.add_row(name, f"{p50_ms(its):.2f}", f"{p95_ms(its):.2f}", more, f"{cpu_ms[name]:.2f}", more_cpu)
    console.print(table)
    return 0


class Pair(msgspec.Struct, frozen=True):
    """A gateway with a retrieval of its own behind it."""

    gateway: ServiceProcess
    retrieval: ServiceProcess

    def cpu_s(self) -> float:
        """Processor time that both have used, their workers included."""
        used = 0.0
        for service in (self.gateway, self.retrieval):
            first = psutil.Process(service.pid)
            for process in (first, *first.children(recursive=True)):
                times = process.cpu_times()
                used += times.user + times.system
        return used


def _pair(opening: ExitStack, stack: Stack, env: dict[str, str], *, measured: bool = True) -> Pair:
    """A new one. Searches alone keep it busy, but for a look at its parts every 5 s."""

    def start(module: str, settings: dict[str, str]) -> ServiceProcess:
        ways = (module,) if measured else ("tests.bench.unmeasured", module)
        return opening.enter_context(ServiceProcess(*ways, env=settings))

    retrieval = start("memplane_retrieval", stack.env | env)
    door = {"MEMPLANE_ENDPOINTS__RETRIEVAL_URL": retrieval.url}
    return Pair(start("memplane_gateway", stack.env | env | door), retrieval)


async def _measured(
    stack: Stack, pairs: Mapping[str, Pair], *, memories: int, rounds: int, told: Told
) -> tuple[dict[str, list[float]], dict[str, float]]:
    async with ground_on(stack, told=told) as ground:
        told.step(f"loading {memories:,} memories")
        await ground.load(range(memories))
        await ground.settled()
        await ground.analyzed()
        doors = {name: Door(pair.gateway.url, lambda: ground.given.key) for name, pair in pairs.items()}
        try:
            await _ask_once(doors, rounds + _WARM_UP)
            before = {name: pair.cpu_s() for name, pair in pairs.items()}
            seconds = await _in_turn(ground, doors, rounds=rounds)
            searches = rounds + _WARM_UP
            return seconds, {name: (pair.cpu_s() - before[name]) / searches * 1000 for name, pair in pairs.items()}
        finally:
            await asyncio.gather(*(door.close() for door in doors.values()))


async def _ask_once(doors: Mapping[str, Door], asked: int) -> None:
    """Have the vector of every question known, and the index's answer to none."""
    for n in range(asked):
        known = msgspec.json.encode(SearchRequest(query=question(n), top_k=1, candidates=1, touch=False))
        await asyncio.gather(*(door.post(_ROUTE, known) for door in doors.values()))


async def _in_turn(ground: Ground, doors: Mapping[str, Door], *, rounds: int) -> dict[str, list[float]]:
    asked = rounds + _WARM_UP
    bodies = [msgspec.json.encode(SearchRequest(query=question(n), touch=False)) for n in range(asked)]

    def turn_of(door: Door) -> Turn:
        return lambda turn: door.post(_ROUTE, bodies[turn])

    turns = ground.told.through(range(asked), "searches", total=asked)
    return await interleaved({name: turn_of(door) for name, door in doors.items()}, turns, warm_up=_WARM_UP)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is stopped
    raise SystemExit(app())

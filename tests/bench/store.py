"""All measurements of one store."""

import time
from collections.abc import Mapping

import msgspec
from tests.bench import searches, writes
from tests.bench.ground import Ground, ground_on
from tests.bench.progress import Told
from tests.bench.results import Calls, Cpu, Options, Row, Stage, StoreResult
from tests.bench.searches import GATEWAY, INSIDE, RETRIEVAL
from tests.bench.stages import IN_THE_SERVICE, Bench, bench_on, gateway_calls

from memplane_core.testing.stack import Stack

GATEWAY_HOP = "gateway: key, checks, HTTP to retrieval and back"
RETRIEVAL_HOP = "retrieval: HTTP, token, JSON"
ON_THE_WAY = (GATEWAY_HOP, RETRIEVAL_HOP, *IN_THE_SERVICE)

INDEXED = "search, everything indexed"
ONE_USER = "search within one user, a tenth of the memories"
WRITE = "write, embedded before, while the worker indexes"
WRITE_ALONE = "write, embedded before, worker stopped"


class Found(msgspec.Struct):
    """Grows from step to step."""

    rows: list[Row]
    search_stages: dict[str, Mapping[str, float]]
    write_stages: dict[str, Mapping[str, float]]
    calls: list[Calls]
    cpu: list[Cpu]


class Numbers:
    """Hands out numbers of sentences that nobody has used."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> range:
        """So many new ones."""
        taken = range(self._next, self._next + count)
        self._next = taken.stop
        return taken


async def measure(stack: Stack, store: str, *, options: Options, told: Told) -> StoreResult:
    """Everything about one store, on a stack that is running and gets a tenant of its own."""
    numbers = Numbers()
    found = Found([], {}, {}, [], [])
    async with ground_on(stack, told=told) as ground:
        told.step(f"{store}: loading {options.memories:,} memories")
        began = time.monotonic()
        await ground.load(numbers.take(options.memories))
        await ground.indexed()
        load_s = time.monotonic() - began
        told.step(f"{store}: loaded and indexed in {load_s:.0f} s; waiting until nothing is fresh")
        await ground.settled()
        await ground.analyzed()
        async with bench_on(ground) as bench:
            await _indexed_searches(ground, bench, found, options=options)
            async with writes.worker_stopped(ground):
                await _fresh_searches(ground, bench, found, options=options, numbers=numbers)
                await _writes_alone(ground, bench, found, options=options, numbers=numbers)
            found.calls += await gateway_calls(ground, numbers.take(20))
            await ground.indexed()
            told.step(f"{store}: writes while the worker indexes")
            some = numbers.take(options.rounds + writes.WARM_UP)
            await writes.embed_beforehand(ground, some)
            found.rows += await writes.compared(ground, WRITE, some, inside=bench.write)
            found.cpu.append(await writes.through_gateway(ground, some))
        told.step(f"{store}: {options.pairs} writes, each searched for at once through another process")
        missed = await searches.missed(ground, numbers.take(options.pairs))
        await ground.indexed()
        told.step(f"{store}: batches of {writes.BATCH:,}, beside the embedder alone")
        start = numbers.take(options.batch_rounds * writes.BATCH).start
        batches, batch_cpu = await writes.batches(ground, start, rounds=options.batch_rounds)
    return StoreResult(
        store=store,
        load_s=load_s,
        rows=found.rows,
        batches=batches,
        search_stages=stages_of(found.search_stages),
        write_stages=stages_of(found.write_stages),
        calls=found.calls,
        cpu=[*found.cpu, *batch_cpu],
        pairs=options.pairs,
        missed=missed,
    )


def stages_of(columns: Mapping[str, Mapping[str, float]]) -> list[Stage]:
    """Stages in the order of the request's way, those behind it that are unknown; none that is usually absent."""
    met = {name for column in columns.values() for name, ms in column.items() if ms}
    names = [*(name for name in ON_THE_WAY if name in met), *sorted(met - set(ON_THE_WAY))]
    return [Stage(name=name, ms={label: column.get(name) for label, column in columns.items()}) for name in names]


async def _indexed_searches(ground: Ground, bench: Bench, found: Found, *, options: Options) -> None:
    ground.told.step("searches, everything indexed")
    rows = await searches.compared(ground, INDEXED, {}, rounds=options.rounds, inside=bench.search)
    found.rows += rows
    mine = {"user_id": "user 3"}
    found.rows += await searches.compared(ground, ONE_USER, mine, rounds=options.rounds, inside=bench.search)
    found.rows += await searches.filtered(ground, rounds=options.rounds)
    found.cpu += await searches.through_gateway(ground, options.rounds)
    ground.told.step("stages of a search")
    cached = await bench.cached_searches(options.rounds)
    fresh_questions = await bench.new_searches(options.rounds // 2)
    found.search_stages["indexed"] = _with_hops(cached.stages(), rows)
    found.search_stages["indexed, new question"] = fresh_questions.stages()
    found.calls += [
        cached.calls("search, question asked before", service=RETRIEVAL),
        fresh_questions.calls("search, new question", service=RETRIEVAL),
    ]


async def _fresh_searches(ground: Ground, bench: Bench, found: Found, *, options: Options, numbers: Numbers) -> None:
    ground.told.step(f"searches with {options.fresh:,} fresh rows, worker stopped")
    await ground.load(numbers.take(options.fresh))
    scenario = f"search with {options.fresh:,} fresh rows"
    rows = await searches.compared(ground, scenario, {}, rounds=options.rounds, inside=bench.search)
    found.rows += rows
    fresh = await bench.cached_searches(options.rounds)
    found.search_stages[f"{options.fresh:,} fresh rows"] = _with_hops(fresh.stages(), rows)


async def _writes_alone(ground: Ground, bench: Bench, found: Found, *, options: Options, numbers: Numbers) -> None:
    ground.told.step("writes and their stages, worker stopped")
    some = numbers.take(options.rounds + writes.WARM_UP)
    await writes.embed_beforehand(ground, some)
    rows = await writes.compared(ground, WRITE_ALONE, some, inside=bench.write)
    found.rows += rows
    alone = await bench.writes(some)
    found.write_stages["embedded before"] = _with_hops(alone.stages(), rows)
    new = await bench.writes(numbers.take(options.rounds // 2))
    found.write_stages["new text"] = new.stages()
    found.calls.append(alone.calls("write", service=RETRIEVAL))


def _with_hops(stages: Mapping[str, float], rows: list[Row]) -> dict[str, float]:
    """The stages, with what HTTP adds around them: as differences of medians."""
    p50 = {row.subject: row.p50_ms for row in rows}
    return {
        GATEWAY_HOP: p50[GATEWAY] - p50[RETRIEVAL],
        RETRIEVAL_HOP: p50[RETRIEVAL] - p50[INSIDE],
        **stages,
    }

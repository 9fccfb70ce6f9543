"""`make bench`: how long writes and searches take through the gateway, beside a bare search of the same collection.

Starts a platform of its own on a temporary home. Numbers are for comparing runs on one machine.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
from pymilvus import MilvusClient
from rich.console import Console
from rich.table import Table

from memplane_core.contracts.memories import (
    BatchWrite,
    BatchWritten,
    EntityFilter,
    MemoryWrite,
    SearchRequest,
    SearchResponse,
    WrittenMemory,
)
from memplane_standalone.admin import Api
from memplane_standalone.platform import Options, Running
from memplane_standalone.progress import ConsoleReporter
from memplane_standalone.up import with_platform

USER = "bench"
BATCH = 100
TOP_K = 10
CANDIDATES = 200
"""How many a search asks Milvus for at this `top_k`; the bare one asks for as many."""

WHO = ("Ana", "Bo", "Chen", "Dara", "Eli", "Fay", "Gus", "Hana")
DID = ("planted", "repaired", "lost", "painted", "borrowed", "sold", "found", "measured", "cooked", "recorded")
WHAT = (
    "a pear tree",
    "the old boat",
    "a brass lamp",
    "the blue door",
    "a violin",
    "the tax form",
    "a map",
    "some soup",
)
WHERE = ("in Lisbon", "at the lake", "behind the school", "on the roof", "near the mill", "in the cellar")


def sentences(count: int, *, seed: int) -> list[str]:
    """As many different sentences."""
    chance = random.Random(seed)
    return [
        f"{chance.choice(WHO)} {chance.choice(DID)} {chance.choice(WHAT)} {chance.choice(WHERE)}, note {seed}-{number}"
        for number in range(count)
    ]


class Row(msgspec.Struct, frozen=True):
    """One line of the result. Times are in seconds."""

    what: str
    times: list[float]
    note: str = ""


async def timed(calls: Iterable[Callable[[], Awaitable[object]]]) -> list[float]:
    """Seconds of each call, one after another."""
    seconds: list[float] = []
    for call in calls:
        began = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - began)
    return seconds


def write(api: Api, text: str) -> Callable[[], Awaitable[WrittenMemory]]:
    """A single write that is never taken for a duplicate."""
    memory = MemoryWrite(content=text, user_id=USER, on_duplicate="create")
    return lambda: api.post("/v1/memories", memory, WrittenMemory)


def search(api: Api, query: str) -> Callable[[], Awaitable[SearchResponse]]:
    """A search that leaves no trace."""
    request = SearchRequest(query=query, top_k=TOP_K, filters=EntityFilter(user_id=USER), touch=False)
    return lambda: api.post("/v1/memories/search", request, SearchResponse)


async def load(api: Api, texts: list[str]) -> Row:
    """Write all in batches; the last one waits for the index."""
    times: list[float] = []
    for start in range(0, len(texts), BATCH):
        memories = [MemoryWrite(content=text, user_id=USER) for text in texts[start : start + BATCH]]
        wait = "index" if start + BATCH >= len(texts) else None
        batch = BatchWrite(memories=memories, wait=wait)
        times += await timed([lambda batch=batch: api.post("/v1/memories/batch", batch, BatchWritten)])
    return Row(f"batch of {BATCH}", times, f"{len(texts) / sum(times):.0f} memories/s, the last waits for the index")


async def missed(api: Api, texts: list[str]) -> int:
    """How many of these are not in the answer to a search right after their write."""
    count = 0
    for text in texts:
        written = await write(api, text)()
        answer = await search(api, text)()
        count += written.id not in [found.id for found in answer.results]
    return count


def bare_searches(uri: str, tenant: UUID, count: int) -> list[float]:
    """Seconds of searches of the tenant's collection without anything of ours."""
    client = MilvusClient(uri=uri)
    collection = f"mp_{tenant.hex}_g1"
    rows = cast(
        "list[dict[str, Any]]",
        client.query(collection, filter=f'user_id == "{USER}"', output_fields=["vector"], limit=count),
    )
    seconds: list[float] = []
    for row in rows:
        began = time.perf_counter()
        client.search(
            collection,
            data=[row["vector"]],
            limit=CANDIDATES,
            filter=f'user_id == "{USER}"',
            output_fields=["id"],
            search_params={"metric_type": "COSINE", "params": {"ef": CANDIDATES}},
            consistency_level="Bounded",
        )
        seconds.append(time.perf_counter() - began)
    client.close()
    return seconds


async def measure(running: Running, *, memories: int, rounds: int, console: Console) -> int:
    """Do everything in turn and print the table."""
    given = running.credentials
    async with Api(given.url, given.api_key, timeout_s=120.0) as api:
        rows = [await load(api, sentences(memories, seed=1))]
        rows.append(Row("write, new text", await timed(write(api, text) for text in sentences(rounds, seed=2))))
        known = sentences(rounds, seed=2)
        rows.append(Row("write, text embedded before", await timed(write(api, text) for text in known)))
        await asyncio.sleep(12)  # until nothing is fresh any more, so that the index answers alone
        queries = [text.partition(",")[0] + "?" for text in sentences(rounds, seed=3)]
        rows.append(Row("search, new query", await timed(search(api, query) for query in queries)))
        rows.append(Row("search, query embedded before", await timed(search(api, query) for query in queries)))
        ports = msgspec.json.decode((running.home.path / "ports.json").read_bytes(), type=dict[str, int])
        uri = f"http://127.0.0.1:{ports['milvus']}"
        bare = await asyncio.to_thread(bare_searches, uri, UUID(given.tenant), rounds)
        rows.append(Row(f"bare Milvus search, {CANDIDATES} candidates", bare))
        lost = await missed(api, sentences(rounds, seed=4))
    console.print(table(rows, memories=memories))
    console.print(f"writes missed by the next search: {lost} of {rounds}", highlight=False)
    return 0


def table(rows: list[Row], *, memories: int) -> Table:
    """Milliseconds."""
    made = Table(title=f"{memories} memories, one caller, milliseconds")
    made.add_column("what")
    for name in ("n", "p50", "p95"):
        made.add_column(name, justify="right")
    made.add_column("")
    for row in rows:
        ordered = sorted(row.times)
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        made.add_row(
            row.what, str(len(ordered)), f"{statistics.median(ordered) * 1000:.1f}", f"{p95 * 1000:.1f}", row.note
        )
    return made


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="memplane-bench-") as folder:
        options = Options(home=Path(folder) / "home", port=0)

        async def body(running: Running) -> int:
            return await measure(running, memories=given.memories, rounds=given.rounds, console=console)

        return asyncio.run(with_platform(options, ConsoleReporter(console), body))


if __name__ == "__main__":
    raise SystemExit(main())

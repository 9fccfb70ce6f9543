"""`python -m tests.bench.merge`: a merge of many memories, and what searches notice of it.

Starts stores and services of its own on free ports and stops them. The job runs in a process of its own, which counts
what it asks of Postgres; the platform's own worker tells the index. Nothing is asserted about times.
"""

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, cast
from uuid import UUID

import msgspec
from cyclopts import App
from rich.console import Console
from tests.bench.ground import WHEN, Ground, ground_on
from tests.bench.progress import Told
from tests.bench.texts import question, sentence, user

from memplane_core.contracts.job_runs import MergeParams
from memplane_core.contracts.memories import MemoryWrite
from memplane_core.domain.merging import threshold_of
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.jobs import create_job, get_job
from memplane_core.storage.session import Connection, Database
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.stack import Stack
from memplane_core.vectors import MilvusIndex
from memplane_maintenance.drain import DrainReport
from memplane_maintenance.jobs import JobRunner, all_jobs
from memplane_maintenance.settings import MaintenanceSettings

app = App(name="merge", help="A merge of many memories.", help_format="plaintext", result_action="return_value")

COPIES: Final = 5
"""Of each text."""

TAILS: Final = ("", "!", " :)", "...", " -")
PAUSE_S: Final = 0.05
BATCH: Final = 400
NOTED: Final = "MEMPLANE_BENCH_MERGE"


class Counting(Database):
    """A database that counts what it is asked for."""

    def __init__(self, database: Database) -> None:
        self._inner = database
        self.transactions = 0
        self.statements = 0

    @asynccontextmanager
    async def tenant(self, tenant: TenantId) -> AsyncGenerator[Connection]:
        """A transaction of the tenant."""
        self.transactions += 1
        async with self._inner.tenant(tenant) as connection:
            yield cast("Connection", _Counted(self, connection))


class _Counted:
    def __init__(self, counting: Counting, connection: Connection) -> None:
        self._counting = counting
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        self._counting.statements += name.startswith(("fetch", "execute"))
        return getattr(self._connection, name)


async def _run(tenant: TenantId, params: MergeParams, *, dry_run: bool) -> dict[str, Any]:
    """The job in this process; what it did and took."""
    settings = MaintenanceSettings.load()
    index = MilvusIndex(settings.milvus)

    async def drain(tenant: TenantId) -> DrainReport:
        del tenant
        return DrainReport()

    async with Database.open(settings.postgres) as database:
        counting = Counting(database)
        async with database.tenant(tenant) as connection:
            job = await create_job(
                tenant,
                connection,
                kind="merge",
                params=msgspec.to_builtins(params),
                dry_run=dry_run,
                started_by="bench",
            )
        runner = JobRunner(counting, all_jobs(counting, index, drain), slice_s=36_000)
        before, began, cpu = _peak_mb(), time.monotonic(), time.process_time()
        while True:
            await runner.run(tenant, job.id)
            async with database.tenant(tenant) as connection:
                found = await get_job(tenant, connection, job.id)
            assert found is not None
            if found.state not in ("queued", "running"):
                break
            await asyncio.sleep(0.2)
        seconds = time.monotonic() - began
    await index.close()
    return {
        "state": found.state,
        "result": found.result,
        "seconds": round(seconds, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "memory_mb": {"before": before, "peak": _peak_mb()},
        "transactions": counting.transactions,
        "statements": counting.statements,
    }


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def _searches(ground: Ground, *, until: asyncio.Event, least: int, first: int) -> list[float]:
    """Seconds of searches through the gateway, one every `PAUSE_S`; every question is new to the index."""
    taken: list[float] = []
    n = first
    while len(taken) < least or not until.is_set():
        body = msgspec.json.encode({"query": question(n % 400), "touch": False, "candidates": 200 + n // 400})
        began = time.perf_counter()
        await ground.gateways[0].post("/v1/memories/search", body)
        taken.append(time.perf_counter() - began)
        n += 1
        await asyncio.sleep(PAUSE_S)
    return taken


def _told(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "searches": len(ordered),
        "p50_ms": round(statistics.median(ordered) * 1000, 1),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1000, 1),
    }


async def _measure(stack: Stack, memories: int, told: Told) -> dict[str, Any]:
    async with ground_on(stack, told=told) as ground:
        told.step(f"writing {memories:,} memories, {COPIES} of each text")
        for start in told.through(range(0, memories, BATCH), "writing, in batches", total=-(-memories // BATCH)):
            batch = range(start, min(start + BATCH, memories))
            await ground.write_batch([_memory(n) for n in batch])
        await ground.settled()
        await ground.analyzed()
        generation = await ground.generation()
        span = (await ground.embedder.profile(generation.model)).span
        done = asyncio.Event()
        done.set()
        await _searches(ground, until=done, least=100, first=0)
        found: dict[str, Any] = {"memories": memories, "model": generation.model}
        found["searches before"] = _told(await _searches(ground, until=done, least=300, first=400))
        first = 2000
        for name, dry_run in (("dry run", True), ("run", False), ("run again", False)):
            told.step(name)
            done = asyncio.Event()
            searching = asyncio.create_task(_searches(ground, until=done, least=20, first=first))
            found[name] = await _in_another_process(stack, ground, threshold_of(span), dry_run=dry_run)
            done.set()
            found[f"searches during the {name}"] = _told(await searching)
            first += 4000
        told.step("until the index has lost them")
        began = time.monotonic()
        await _removed(ground)
        found["removed from the index after"] = round(time.monotonic() - began, 1)
        return found


def _memory(n: int) -> MemoryWrite:
    text = sentence(n // COPIES)
    copy = n % COPIES
    return MemoryWrite(
        content=(text.lower() if copy == 1 else text) + TAILS[copy], user_id=user(n // COPIES), occurred_at=WHEN
    )


async def _removed(ground: Ground) -> None:
    while True:
        async with ground.database.tenant(ground.tenant) as connection:
            left = await connection.fetchval(
                "SELECT count(*) FROM outbox WHERE tenant_id = $1 AND op = 'delete' AND attempts = 0",
                ground.tenant,
            )
        if not left:
            return
        await asyncio.sleep(0.5)


async def _in_another_process(stack: Stack, ground: Ground, threshold: float, *, dry_run: bool) -> dict[str, Any]:
    noted = json.dumps({"tenant": str(ground.tenant), "threshold": threshold, "dry_run": dry_run})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.merge", "job"),
        env={**os.environ, **stack.env, "MEMPLANE_LOG__LEVEL": "error", NOTED: noted},
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return json.loads(out.decode().splitlines()[-1])


@app.command
def job() -> int:
    """Run the job that the environment names; for this script alone."""
    given = json.loads(os.environ[NOTED])
    params = MergeParams(threshold=given["threshold"])
    found = asyncio.run(_run(TenantId(UUID(given["tenant"])), params, dry_run=given["dry_run"]))
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


@app.default
def bench(*, store: Literal["lite", "server"] = "lite", memories: int = 20_000, model: str = "all-MiniLM-L6-v2") -> int:
    """Measure, and print what was found as JSON."""
    with Stack(MilvusLite() if store == "lite" else MilvusServer(), model=model, doors=2) as stack:
        found = asyncio.run(_measure(stack, memories, Told(Console(stderr=True, width=160))))
    sys.stdout.write(json.dumps({"store": store, **found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(app())

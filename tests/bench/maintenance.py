"""`python -m tests.bench.maintenance`: what priorities, prune and purge cost, and what searches notice of it.

Starts stores and services of its own on free ports and stops them. Each job is run twice: by the worker, while a
client searches, and in this process, where its statements are counted.
"""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from uuid import UUID

import httpx2
import msgspec
import psutil
from cyclopts import App
from rich.console import Console
from rich.table import Table
from tests.bench.progress import Told
from tests.bench.texts import sentence

from memplane_core.contracts.maintenance_runs import MaintenanceKind, params_of
from memplane_core.contracts.policy import MaintenancePolicy
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.jobs import create_job, get_job
from memplane_core.storage.session import Connection, Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.rows import eventually
from memplane_core.testing.stack import Stack, StackTenant
from memplane_core.testing.tenants import make_tenant
from memplane_maintenance.jobs import JobRunner
from memplane_maintenance.jobs.priorities import Priorities
from memplane_maintenance.jobs.prune import Prune
from memplane_maintenance.jobs.purge import Expire, Purge

app = App(name="maintenance", help_format="plaintext", result_action="return_value")

KINDS: Final[tuple[MaintenanceKind, ...]] = ("priorities", "prune", "purge")
_BATCH: Final = 400
_STAY: Final = 2_000
_QUERIES: Final = [f"what about number {n}" for n in range(20)]
_PATIENCE_S: Final = 1_800.0

_RIPEN: Final = {
    "priorities": "UPDATE memory SET created_at = created_at - interval '400 days' WHERE id = ANY($1)",
    "prune": """
        WITH aged AS (UPDATE memory SET updated_at = updated_at - interval '400 days' WHERE id = ANY($1))
        UPDATE memory_usage SET last_accessed_at = last_accessed_at - interval '400 days', priority = 2
        WHERE memory_id = ANY($1)
    """,
    "purge": "UPDATE memory SET purge_at = purge_at - interval '31 days' WHERE id = ANY($1)",
    "expire": "UPDATE memory SET expires_at = clock_timestamp() - interval '31 days' WHERE id = ANY($1)",
}


class Counted(Database):
    """A database that counts what it is asked."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.statements = 0

    @asynccontextmanager
    async def tenant(self, tenant: TenantId) -> AsyncGenerator[Connection]:
        """A transaction; its begin and its end are two statements."""
        self.statements += 2
        async with self._inner.tenant(tenant) as connection:
            yield _Counting(connection, self)


class _Counting:
    def __init__(self, inner: Connection, counted: Counted) -> None:
        self._inner = inner
        self._counted = counted

    async def execute(self, query: str, *args: object) -> str:
        self._counted.statements += 1
        return await self._inner.execute(query, *args)

    async def fetch(self, query: str, *args: object) -> list[Any]:
        self._counted.statements += 1
        return await self._inner.fetch(query, *args)

    async def fetchrow(self, query: str, *args: object) -> Any:
        self._counted.statements += 1
        return await self._inner.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: object) -> Any:
        self._counted.statements += 1
        return await self._inner.fetchval(query, *args)


class Row(msgspec.Struct, kw_only=True):
    """What one kind of job cost.

    Attributes:
        here_s: Seconds in this process, with nothing beside it.
        here_mb: What this process grew by, at most.
        worker_s: Seconds by the worker, while a client searched.
        worker_mb: What the worker grew by, at most.
        p50_ms: Of searches just before, during, and until the index knew it.
    """

    kind: str
    changed: int
    statements: int
    here_s: float
    here_mb: float
    worker_s: float = 0.0
    worker_mb: float = 0.0
    p50_ms: list[float | None] = []


@app.default
def bench(*, memories: int = 20_000) -> int:
    """Measure, and print a table.

    Parameters
    ----------
    memories
        That each job changes; 2,000 more stay as they are.
    """
    told = Told(Console())
    told.step(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    with Stack(MilvusLite(), durable=True) as stack:
        rows = asyncio.run(_measure(stack, memories, told))
    table = Table(
        "job", "memories", "statements", "alone", "memory", "by the worker", "memory", "p50 before/during/after"
    )
    for row in rows:
        searches = " / ".join("-" if ms is None else f"{ms:.1f}" for ms in row.p50_ms)
        table.add_row(
            *(row.kind, f"{row.changed:,}", f"{row.statements:,}", f"{row.here_s:.1f} s", f"{row.here_mb:.0f} MB"),
            *(f"{row.worker_s:.1f} s", f"{row.worker_mb:.0f} MB", f"{searches} ms"),
        )
    Console(width=140).print(table)
    return 0


async def _measure(stack: Stack, memories: int, told: Told) -> list[Row]:
    settings = PostgresSettings.model_validate({"url": stack.env["MEMPLANE_POSTGRES__URL"]})
    async with Database.open(settings) as database:
        rows = await _here(database, memories, told)
        tenant = stack.make_tenant("bench")
        await _by_worker(stack, tenant, database, rows=rows, memories=memories, told=told)
    return rows


async def _here(database: Database, memories: int, told: Told) -> list[Row]:
    """Every kind in this process, over memories that no index knows."""
    tenant = await make_tenant(database)
    desk = MemoryDesk(database, tenant, HashEmbedder())
    ids: list[UUID] = []
    for start in range(0, memories + _STAY, _BATCH):
        ids += await desk.write(*(sentence(n) for n in range(start, start + _BATCH)))
    told.step(f"{len(ids):,} memories written here")
    rows: list[Row] = []
    for kind in (*KINDS, "expire"):
        if kind == "expire":
            ids = ids[memories:]  # what is left
        await _sql(database, tenant, _RIPEN[kind], ids[:memories])
        counted = Counted(database)
        jobs = {"priorities": Priorities, "prune": Prune, "purge": Purge, "expire": Expire}
        runner = JobRunner(counted, {kind: jobs[kind](counted)}, slice_s=600)
        async with database.tenant(tenant) as connection:
            params = params_of(kind, MaintenancePolicy())
            job = await create_job(tenant, connection, kind=kind, params=params, dry_run=False, started_by="bench")
        began = time.perf_counter()
        async with _memory(psutil.Process()) as grown:
            await runner.run(tenant, job.id)
        took = time.perf_counter() - began
        async with database.tenant(tenant) as connection:
            done = await get_job(tenant, connection, job.id)
        assert done is not None
        changed = sum(count for name, count in done.result.items() if name != "checked")
        assert changed == (_STAY if kind == "expire" else memories), f"{kind} changed {changed}"
        row = Row(kind=kind, changed=changed, statements=counted.statements, here_s=took, here_mb=grown())
        rows.append(row)
        told.step(f"{kind}: {row.changed:,} in {took:.1f} s, {counted.statements} statements")
    return rows


async def _by_worker(
    stack: Stack, tenant: StackTenant, database: Database, *, rows: list[Row], memories: int, told: Told
) -> None:
    """Every kind by the worker, over memories that the index knows, while a client searches."""
    own = TenantId(UUID(tenant.id))
    worker = psutil.Process(stack.worker.pid)
    headers = {"Authorization": f"Bearer {tenant.key}"}
    async with httpx2.AsyncClient(base_url=stack.gateways[0].url, headers=headers, timeout=120) as client:
        ids = await _write(client, memories + _STAY)
        await _settle(database, own)
        told.step(f"{len(ids):,} memories written and indexed")
        for row in rows:
            if row.kind == "expire":
                continue
            await _sql(database, own, _RIPEN[row.kind], ids[:memories])
            before = await _searches(client, _at_most(150))
            async with _memory(worker) as grown:
                asked = (await client.post("/v1/jobs", json={"kind": row.kind})).raise_for_status()
                job = UUID(asked.json()["id"])
                during = await _searches(client, partial(_runs, database, own, job))
                row.worker_mb = grown()
            after = await _searches(client, partial(_lags, database, own))
            async with database.tenant(own) as connection:
                done = await get_job(own, connection, job)
            assert done is not None
            assert done.started_at is not None
            assert done.finished_at is not None
            row.worker_s = (done.finished_at - done.started_at).total_seconds()
            began, ended = done.started_at.timestamp(), done.finished_at.timestamp()
            meanwhile = [search for search in during if began < search.at + search.took and search.at < ended]
            row.p50_ms = [_p50(before), _p50(meanwhile), _p50(after)]
            told.step(f"{row.kind}: {done.result} in {row.worker_s:.1f} s; {len(meanwhile)} searches meanwhile")


def _at_most(count: int) -> Callable[[], Awaitable[bool]]:
    left = [count]

    async def more() -> bool:
        left[0] -= 1
        return left[0] >= 0

    return more


async def _runs(database: Database, tenant: TenantId, job_id: UUID) -> bool:
    async with database.tenant(tenant) as connection:
        job = await get_job(tenant, connection, job_id)
    return job is not None and job.finished_at is None


async def _lags(database: Database, tenant: TenantId) -> bool:
    async with database.tenant(tenant) as connection:
        return bool(
            await connection.fetchval(
                "SELECT EXISTS (SELECT FROM outbox WHERE done_at IS NULL AND failed_at IS NULL AND attempts = 0)"
            )
        )


async def _settle(database: Database, tenant: TenantId) -> None:
    await eventually(partial(_lags, database, tenant), lambda lags: not lags, timeout_s=_PATIENCE_S)


class Search(msgspec.Struct, frozen=True):
    """When a search began, in epoch seconds, and how many seconds it took."""

    at: float
    took: float


async def _searches(client: httpx2.AsyncClient, more: Callable[[], Awaitable[bool]]) -> list[Search]:
    """One search after the other for as long as there is more."""
    done: list[Search] = []
    while await more():
        body = {"query": _QUERIES[len(done) % len(_QUERIES)], "touch": False}
        at, began = time.time(), time.perf_counter()
        (await client.post("/v1/memories/search", json=body)).raise_for_status()
        done.append(Search(at, time.perf_counter() - began))
    return done


async def _write(client: httpx2.AsyncClient, count: int) -> list[UUID]:
    ids: list[UUID] = []
    for start in range(0, count, _BATCH):
        body = {"memories": [{"content": sentence(n)} for n in range(start, start + _BATCH)]}
        answer = (await client.post("/v1/memories/batch", json=body)).raise_for_status()
        ids += [UUID(item["id"]) for item in answer.json()["results"]]
    return ids


async def _sql(database: Database, tenant: TenantId, query: str, ids: list[UUID]) -> None:
    async with database.tenant(tenant) as connection:
        await connection.execute(query, ids)


@asynccontextmanager
async def _memory(process: psutil.Process) -> AsyncGenerator[Callable[[], float]]:
    """Megabytes that a process grows by at most while the context lasts."""
    before = most = process.memory_info().rss
    ended = False

    async def look() -> None:
        nonlocal most
        while not ended:
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    yield lambda: (most - before) / 1e6
    ended = True
    await looking


def _p50(searches: list[Search]) -> float | None:
    return statistics.median(search.took for search in searches) * 1000 if searches else None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is stopped
    raise SystemExit(app())

"""A disaster tried out: an installation is backed up, lost and restored, and has to be the same as before."""

import asyncio
import shutil
import time
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
from rich.console import Console

from memplane_core.domain.tenancy import SCOPES
from memplane_standalone.admin import AdminApi
from memplane_standalone.backup import STARTED_BY, back_up, restore
from memplane_standalone.backup_transfer import Transfer
from memplane_standalone.home import Credentials
from memplane_standalone.platform import Options, platform
from memplane_standalone.supervisor import StartError

_INDEXED_S: Final = 300.0
_QUESTIONS: Final = ("the harbour lantern", "who likes saffron?", "number 7 in the orchard", "copper and velvet")
_THINGS: Final = (
    "harbour",
    "lantern",
    "saffron",
    "orchard",
    "copper",
    "velvet",
    "glacier",
    "violin",
    "meadow",
    "cedar",
)


class DrillError(StartError):
    """The restored installation is not the one that was lost."""


class _Tenant(msgspec.Struct, frozen=True):
    id: str
    key: str


class _State(msgspec.Struct, frozen=True):
    """What a tenant has to have again.

    Attributes:
        records: Digest of its memories and their histories.
        counts: Memories by state.
        found: For each question, the memories that a search finds, the best first.
    """

    records: str
    counts: dict[str, int]
    found: list[list[str]]


class _Quiet:
    """A reporter for a platform that nobody watches."""

    def starting(self, part: str) -> None:
        """Nothing."""

    def ready(self, part: str, *, seconds: float) -> None:
        """Nothing."""

    def trouble(self, part: str, *, what: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class _Clock:
    """Prints a line a step, with how long it took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def step(self, what: str) -> None:
        now = time.monotonic()
        self._console.print(f"{now - self._began:7.1f} s  {what}", highlight=False, soft_wrap=True)
        self._began = now


async def run_drill(folder: Path, *, memories: int, console: Console) -> int:
    """Try it, print timings, and return 0.

    Args:
        folder: To work in; what is made there is removed.
        memories: Of each of two tenants.
        console: To print on.

    Raises:
        DrillError: Something is not as it was.
        StartError, HomeError, ApiError: A step fails.
    """
    first, second, kept, file = folder / "first", folder / "second", folder / "kept", folder / "memplane.dump"
    clock = _Clock(console)
    try:
        async with platform(Options(home=first, port=0), reporter=_Quiet()) as running:
            clock.step("first installation started")
            tenants = await _make_tenants(running.credentials)
            for number, tenant in enumerate(tenants):
                await _furnish(running.credentials.url, tenant, number=number, memories=memories)
            clock.step(f"{len(tenants)} tenants written and indexed, {memories} memories each")
            before = [await _state(running.credentials.url, tenant) for tenant in tenants]
            size = await asyncio.to_thread(back_up, home=first, to=file, database_url=None)
            clock.step(f"backed up while it runs: {size:,} bytes")
            async with _client(running.credentials.url, tenants[0]) as client:
                await _ok(client.post("/v1/memories", json={"content": "written after the backup", "user_id": "ana"}))
            kept.mkdir(parents=True, exist_ok=True)
            for name in ("secrets.json", "credentials.json"):
                shutil.copy2(first / name, kept / name)
            running.supervisor.kill()
        shutil.rmtree(first)
        clock.step("first installation killed and destroyed: database, index, queues and caches")
        await restore(file=file, home=second, secrets=kept / "secrets.json", database_url=None)
        clock.step("restored into a new installation")
        async with platform(Options(home=second, port=0), reporter=_Quiet()) as running:
            clock.step("new installation started")
            url = running.credentials.url
            _compare(before, [await _state(url, tenant) for tenant in tenants], when="at once")
            clock.step("exports and searches are the same at once, whether the index is filled yet or not")
            await _rebuilt(url, tenants)
            clock.step("index filled again from the database, by the reconciles that the restore has queued")
            _compare(before, [await _state(url, tenant) for tenant in tenants], when="once the index is filled")
            clock.step("exports and searches are the same, answered from the index")
            running.supervisor.kill()
    finally:
        for home in (first, second, kept):
            shutil.rmtree(home, ignore_errors=True)
        file.unlink(missing_ok=True)
    console.print("the drill went well", highlight=False)
    return 0


async def _make_tenants(credentials: Credentials) -> list[_Tenant]:
    async with AdminApi(credentials.url, credentials.admin_key) as admin:
        found: list[_Tenant] = []
        for name in ("drill one", "drill two"):
            made = await admin.create_tenant(name)
            key = await admin.create_key(made.id, name="drill", scopes=sorted(SCOPES))
            found.append(_Tenant(str(made.id), key.key))
        return found


async def _furnish(url: str, tenant: _Tenant, *, number: int, memories: int) -> None:
    """Memories with histories, some forgotten, some deleted; all of them indexed."""
    async with _client(url, tenant) as client:
        ids: list[str] = []
        for start in range(0, memories, 250):
            texts = [_text(number, n) for n in range(start, min(start + 250, memories))]
            body = {"memories": [{"content": text, "user_id": "ana", "importance": 0.5} for text in texts]}
            ids += [item["id"] for item in (await _ok(client.post("/v1/memories/batch", json=body)))["results"]]
        for n, memory_id in enumerate(ids[:10]):
            await _ok(client.patch(f"/v1/memories/{memory_id}", json={"importance": n / 10, "metadata": {"n": 1e16}}))
        for memory_id in ids[10:15]:
            await _ok(client.post(f"/v1/memories/{memory_id}/forget"))
        for memory_id in ids[15:20]:
            await _ok(client.delete(f"/v1/memories/{memory_id}"))
        last = {"memories": [{"content": _text(number, memories), "user_id": "ana"}], "wait": "index"}
        await _ok(client.post("/v1/memories/batch", json=last))
        await _until_indexed(client)


def _text(number: int, n: int) -> str:
    one, two, three = (_THINGS[n // step % len(_THINGS)] for step in (1, 10, 100))
    return f"Tenant {number}, note {n}: the {one} beside the {two} belongs to the {three}, number {n * 7919 % 10_007}."


async def _state(url: str, tenant: _Tenant) -> _State:
    out = BytesIO()
    trailer = await Transfer(url, tenant.key).export(out, query={}, progress=lambda _: None)
    async with _client(url, tenant) as client:
        found: list[list[str]] = []
        for question in _QUESTIONS:
            body = {"query": question, "top_k": 10, "touch": False, "now": "2026-01-01T00:00:00Z"}
            answer = await _ok(client.post("/v1/memories/search", json=body))
            found.append([memory["id"] for memory in answer["results"]])
    return _State(trailer.records_sha256, {str(state): count for state, count in trailer.states.items()}, found)


def _compare(before: list[_State], after: list[_State], *, when: str) -> None:
    for number, (was, now) in enumerate(zip(before, after, strict=True), 1):
        for what in ("counts", "records", "found"):
            if getattr(was, what) != getattr(now, what):
                raise DrillError(f"tenant {number} has other {what} {when}: {getattr(was, what)}, {getattr(now, what)}")


async def _rebuilt(url: str, tenants: list[_Tenant]) -> None:
    """Return once each tenant's reconcile is done and searches use the index."""
    deadline = time.monotonic() + _INDEXED_S
    for tenant in tenants:
        async with _client(url, tenant) as client:
            while True:
                jobs = (await _ok(client.get("/v1/jobs", params={"kind": "reconcile"})))["results"]
                mine = [job["state"] for job in jobs if job["started_by"] == STARTED_BY]
                search = await _ok(client.post("/v1/memories/search", json={"query": "lantern", "touch": False}))
                if mine == ["done"] and search["degraded"] == []:
                    break
                if time.monotonic() > deadline or "failed" in mine:
                    raise DrillError(f"the index was not filled again: {mine}, degraded {search['degraded']}")
                await asyncio.sleep(0.5)
            await _until_indexed(client)


async def _until_indexed(client: httpx2.AsyncClient) -> None:
    deadline = time.monotonic() + _INDEXED_S
    while time.monotonic() < deadline:
        cursor: str | None = None
        pending = False
        while True:
            query: dict[str, str | int] = {"limit": 1000, **({"cursor": cursor} if cursor else {})}
            page = await _ok(client.get("/v1/memories", params=query))
            pending = pending or any(memory["index_state"] != "indexed" for memory in page["results"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
        if not pending:
            return
        await asyncio.sleep(0.3)
    raise DrillError("the index was not told of all memories in time")


def _client(url: str, tenant: _Tenant) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {tenant.key}"}
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=60.0, trust_env=False)


async def _ok(asked: Any) -> Any:
    answer: httpx2.Response = await asked
    if answer.status_code >= 400:
        raise DrillError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}")
    return answer.json() if answer.content else None

"""The memory explorer: search and list as the tenant, look at one memory, and change what may be changed."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.admin import KeyCreated
from memplane_core.contracts.history import HistoryPage
from memplane_core.contracts.memories import MemoryPage, SearchResponse
from memplane_core.contracts.merges import Undone
from memplane_core.contracts.policy import Policy
from memplane_core.domain.errors import invalid
from memplane_core.domain.memory import Memory
from memplane_core.storage.merges import ABSORBED, GAVE_BACK
from memplane_gateway.console.calls import Refused
from memplane_gateway.console.scores import Ranking, signals
from memplane_gateway.console.sessions import LentKey
from memplane_gateway.console.visits import Form, MemoriesClosed, Visit

FILTERS: Final = ("user_id", "agent_id", "session_id", "memory_type", "actor", "source")
_UNDO: Final = "/v1/memories/merge/undo"
_LENT_S: Final = 3600
_PAGE: Final = 25


@get("/t/{tenant:uuid}/memories")
async def explorer(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """The newest memories, and the form to search among all."""
    try:
        return await _show(visit, tenant, Form({}))
    except MemoriesClosed:
        return await closed_page(visit, tenant)


@post("/t/{tenant:uuid}/memories", status_code=200)
async def explore(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """What a search finds, or what a list has. A form, so that queries stand in no address and no log."""
    return await _show(visit, tenant, await visit.form())


async def closed_page(visit: Visit, tenant: UUID) -> Response[bytes]:
    """Where an operator opens a tenant's memories."""
    return await visit.page("closed.html", title="Memories", tenant=tenant)


async def _show(visit: Visit, tenant: UUID, form: Form) -> Response[bytes]:
    key = visit.memory_key(tenant)
    values: dict[str, Any] = {"form": form, "filters": FILTERS, "found": None, "listed": None, "ranking": Ranking()}
    where = values["narrowed"] = filters_of(form)
    query = form.text("query")
    held = {} if (valid_at := form.text("valid_at")) is None else {"valid_at": valid_at}
    if query is not None:
        values["ranking"] = ranking = await ranking_of(visit, tenant)
        body = {
            "query": query,
            "filters": where,
            "top_k": form.number("top_k") or 10,
            "mode": form.text("mode") or "hybrid",
            "explain": True,
            "touch": False,  # whoever looks leaves no trace
        }
        body |= {"preset": ranking.preset} if ranking.preset else {}
        body |= held
        answer = await visit.send("POST", "/v1/memories/search", key=key, body=body)
        values["found"] = answer.read(SearchResponse)
    else:
        body = {"filters": where, "limit": _PAGE, "state": form.text("state") or "active", **held}
        body |= {"sort": form.text("sort") or "-created_at"}
        if (cursor := form.text("cursor")) is not None:
            body["cursor"] = cursor
        answer = await visit.send("POST", "/v1/memories/list", key=key, body=body)
        values["listed"] = answer.read(MemoryPage)
    return await visit.page("memories.html", title="Memories", tenant=tenant, signals=signals, **values)


def filters_of(form: Form) -> dict[str, Any]:
    """The filter that a form asks for. Raises InvalidRequest where what is written as JSON is no object."""
    where: dict[str, Any] = {name: text for name in FILTERS if (text := form.text(name)) is not None}
    if (scene := form.text("scene")) is not None:
        where["scene"] = [part.strip() for part in scene.split(",") if part.strip()]
    if (least := form.number("priority")) is not None:
        where["priority"] = {"gte": least}
    if (text := form.text("more")) is not None:
        try:
            more = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise invalid("/filters", f"must be a JSON object: {error}") from None
        where = {"AND": [where, more]} if where and more else where or more
    return where


async def ranking_of(visit: Visit, tenant: UUID) -> Ranking:
    """How the tenant's policy ranks; the platform's own way where this key may not read it."""
    try:
        policy = (await visit.ask(f"{visit.base(tenant)}/policy")).read(Policy)
    except Refused:
        return Ranking()
    return Ranking(policy.weights, policy.preset)


@get("/t/{tenant:uuid}/memories/{memory:uuid}")
async def memory_page(visit: NamedDependency[Visit], tenant: FromPath[UUID], memory: FromPath[UUID]) -> Response[bytes]:
    """One memory and what became of it."""
    try:
        return await _show_memory(visit, tenant, memory)
    except MemoriesClosed:
        return await closed_page(visit, tenant)


async def _show_memory(visit: Visit, tenant: UUID, memory: UUID, notice: str | None = None) -> Response[bytes]:
    key = visit.memory_key(tenant)
    found = (await visit.ask(f"/v1/memories/{memory}", key=key)).read(Memory)
    history = (await visit.ask(f"/v1/memories/{memory}/history", key=key)).read(HistoryPage)
    return await visit.page(
        "memory.html",
        title="Memory",
        tenant=tenant,
        memory=found,
        history=history,
        stands_for=_stands_for(history),
        notice=notice,
    )


def _stands_for(history: HistoryPage) -> list[str]:
    """Ids of memories that were merged into one and not given back, as far as a page of its history goes."""
    ids: dict[str, None] = {}
    for entry in reversed(history.results):
        named: list[str] = entry.changes.get("memories", [])
        if entry.event == ABSORBED:
            ids |= dict.fromkeys(named)
        elif entry.event == GAVE_BACK:
            ids = {memory_id: None for memory_id in ids if memory_id not in named}
    return list(ids)


def _undone(undone: Undone) -> str:
    """What came of taking merges back, for whoever asked for it."""
    count = len(undone.restored)
    if not count:
        return "There was nothing left to restore."
    told = "1 memory is active again." if count == 1 else f"{count:,} memories are active again."
    return told if undone.complete else f"{told} There are more: undo once more for the next."


@post("/t/{tenant:uuid}/memories/{memory:uuid}", status_code=200)
async def change_memory(
    visit: NamedDependency[Visit], tenant: FromPath[UUID], memory: FromPath[UUID]
) -> Response[bytes]:
    """Forget, restore, pin or unpin a memory, or restore what was merged into it."""
    form = await visit.form()
    key, path = visit.memory_key(tenant), f"/v1/memories/{memory}"
    match form.text("do"):
        case "forget":
            await visit.send("POST", f"{path}/forget", key=key, repeat_key=form.text("once"))
            notice = "Forgotten: no search finds it. It can be restored until it is purged."
        case "restore":
            await visit.send("POST", f"{path}/restore", key=key, repeat_key=form.text("once"))
            notice = "Restored: searches find it again."
        case "undo":
            body = {"survivor": memory}
            sent = await visit.send("POST", _UNDO, key=key, body=body, repeat_key=form.text("once"))
            notice = _undone(sent.read(Undone))
        case "pin" | "unpin" as wanted:
            body = {"pinned": wanted == "pin"}
            await visit.send("PATCH", path, key=key, body=body, repeat_key=form.text("once"))
            notice = "Pinned: no maintenance changes it." if body["pinned"] else "No longer pinned."
        case _:
            raise invalid("do", "is nothing that can be done to a memory")
    return await _show_memory(visit, tenant, memory, notice)


@post("/t/{tenant:uuid}/open", status_code=200)
async def open_memories(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """Make an operator a key for a tenant's memories, which ends within the hour."""
    form = await visit.form()
    until = datetime.now(UTC) + timedelta(seconds=_LENT_S)
    body = {"name": "console", "scopes": ["memories:read", "memories:write"], "expires_at": until}
    answer = await visit.send("POST", f"{visit.base(tenant)}/keys", body=body, repeat_key=form.text("once"))
    made = answer.read(KeyCreated)
    await visit.lend(tenant, LentKey(made.id, made.key, time.time() + _LENT_S))
    return visit.go(f"/t/{tenant}/memories")


@post("/t/{tenant:uuid}/close", status_code=200)
async def close_memories(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """Revoke the key that was made for this session."""
    await visit.form()
    lent = visit.session.lent.get(str(tenant))
    if lent is None:
        raise MemoriesClosed
    await visit.send("DELETE", f"{visit.base(tenant)}/keys/{lent.id}")
    await visit.lend(tenant, None)
    return visit.go(f"/t/{tenant}")


EXPLORER_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    explorer,
    explore,
    memory_page,
    change_memory,
    open_memories,
    close_memories,
)

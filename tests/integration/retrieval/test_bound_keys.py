"""A key that is bound to a user can neither touch nor learn of anything of another, on any route."""

from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest
from litestar.handlers import HTTPRouteHandler
from tests.integration.retrieval.bound import MINE, SESSION_SCENARIOS, THEIRS, Scenario, World
from tests.integration.retrieval.conftest import SECRET, Service

from memplane_core.domain.tenancy import SCOPES, Principal
from memplane_core.security.internal import InternalTokens
from memplane_retrieval.merge_routes import MERGE_ROUTES
from memplane_retrieval.routes import ROUTES
from memplane_retrieval.routes_context import CONTEXT_ROUTES
from memplane_retrieval.routes_markers import MARKER_ROUTES
from memplane_retrieval.routes_records import RECORD_ROUTES
from memplane_retrieval.routes_sessions import SESSION_ROUTES
from memplane_retrieval.routes_why import WHY_ROUTES

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(service: Service) -> AsyncGenerator[World]:
    async with service.running() as free:
        ids: list[str] = []
        for who in ({"user_id": "ana"}, {"user_id": "bob"}, {"agent_id": "ana"}, {}, {"user_id": "Ana"}):
            body = {"content": MINE if who == {"user_id": "ana"} else THEIRS, "session_id": "s", **who}
            answer = await free.post("/v1/memories", json=body)
            assert answer.status_code == 201, answer.text
            ids.append(answer.json()["id"])
        principal = Principal(
            tenant=service.tenant, scopes=SCOPES, key_id="bound", request_id="request-of-test", bind_user_id="ana"
        )
        token = InternalTokens(SECRET).sign(principal)
        async with service.running() as bound:
            bound.headers["Authorization"] = f"Bearer {token}"
            yield World(bound, free, ids[0], ids[1:])


async def _write(world: World) -> None:
    given = await world.bound.post("/v1/memories", json={"content": "a new one"})
    assert (given.status_code, given.json()["user_id"]) == (201, "ana")
    named = await world.bound.post("/v1/memories", json={"content": "another", "user_id": "ana", "agent_id": "x"})
    assert (named.status_code, named.json()["agent_id"]) == (201, "x")
    for other in ("bob", None):
        refused = await world.bound.post("/v1/memories", json={"content": "x", "user_id": other})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/user_id")
    # Of what is another's nothing is learned but what is said of what there never was.
    absent = "01990000-0000-7000-8000-000000000001"
    for other in (absent, *world.theirs):
        refused = await world.bound.post("/v1/memories", json={"content": "since", "supersedes": other})
        assert (refused.status_code, refused.json()["errors"]) == (
            422,
            [{"pointer": "/supersedes", "detail": "names no memory of the same user and agent"}],
        )
    # The name of a memory is its user's: this one makes another of the same name.
    theirs = {"content": THEIRS, "user_id": "bob", "external_id": "name"}
    named = await world.free.post("/v1/memories", json=theirs)
    own = await world.bound.post("/v1/memories", json={"content": "mine", "external_id": "name"})
    assert own.status_code == 201
    assert own.json()["id"] != named.json()["id"]


async def _write_batch(world: World) -> None:
    body = {"memories": [{"content": "one of two"}, {"content": "two of two", "user_id": "ana"}]}
    given = await world.bound.post("/v1/memories/batch", json=body)
    assert [item["status"] for item in given.json()["results"]] == [201, 201]
    for item in given.json()["results"]:
        assert (await world.free.get(f"/v1/memories/{item['id']}")).json()["user_id"] == "ana"
    body["memories"][1]["user_id"] = "bob"
    refused = await world.bound.post("/v1/memories/batch", json=body)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/memories/1/user_id")


async def _why(world: World) -> None:
    absent = "01990000-0000-7000-8000-000000000001"
    told: list[dict[str, Any]] = []
    for memory_id in (absent, *world.theirs, world.mine):
        answer = await world.bound.post("/v1/memories/why", json={"query": "keys", "memory_id": memory_id})
        assert answer.status_code == 200, answer.text
        assert "bob" not in answer.text
        told.append({**answer.json(), "memory_id": None, "least_score": None})  # it falls with time
    assert [its["outcome"] for its in told] == [*["missing"] * (len(told) - 1), "recalled"]
    assert all(its == told[0] for its in told[:-1])
    assert told[-1]["pool"] == 1


async def _context(world: World) -> None:
    body = {"query": "where are the keys, bob?", "filters": {"session_id": "s"}}
    answer = await world.bound.post("/v1/context", json=body)
    assert answer.status_code == 200, answer.text
    assert [item["id"] for item in answer.json()["items"]] == [world.mine]
    assert "bob" not in answer.json()["text"]
    refused = await world.bound.post("/v1/context", json={"query": "keys", "filters": {"user_id": "bob"}})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/filters/user_id")

    refused = await world.bound.post(
        "/v1/context", json={"query": "keys", "include_short_term": {"session_id": "s", "user_id": "bob"}}
    )
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/include_short_term/user_id")
    await world.free.post("/v1/observations", json={"content": THEIRS, "session_id": "s", "user_id": "bob"})
    answer = await world.bound.post("/v1/context", json={**body, "include_short_term": {"session_id": "s"}})
    assert [item["id"] for item in answer.json()["items"]] == [world.mine]


async def _search(world: World) -> None:
    for extra in ({}, {"mode": "lexical"}, {"mode": "dense"}, {"filters": {"session_id": "s"}}, {"rerank": True}):
        answer = await world.bound.post(
            "/v1/memories/search", json={"query": "where are the keys, bob?", "top_k": 100, **extra}
        )
        assert answer.status_code == 200, answer.text
        assert [found["id"] for found in answer.json()["results"]] == [world.mine]
    refused = await world.bound.post("/v1/memories/search", json={"query": "keys", "filters": {"user_id": "bob"}})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/filters/user_id")
    sly = {"OR": [{"user_id": "bob"}, {"session_id": "s"}], "NOT": {"user_id": "ana"}}
    answer = await world.bound.post("/v1/memories/search", json={"query": "keys", "filters": sly})
    assert answer.json()["results"] == []


async def _list(world: World) -> None:
    answer = await world.bound.get("/v1/memories")
    assert [memory["id"] for memory in answer.json()["results"]] == [world.mine]
    refused = await world.bound.get("/v1/memories", params={"user_id": "bob"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "user_id")


async def _list_matching(world: World) -> None:
    answer = await world.bound.post("/v1/memories/list", json={"filters": {"NOT": {"session_id": "other"}}})
    assert [memory["id"] for memory in answer.json()["results"]] == [world.mine]
    refused = await world.bound.post("/v1/memories/list", json={"filters": {"user_id": ["bob", "Ana"]}})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/filters/user_id")
    # A cursor of somebody else's list is of no use.
    page = await world.free.post("/v1/memories/list", json={"limit": 1})
    refused = await world.bound.post("/v1/memories/list", json={"limit": 1, "cursor": page.json()["next_cursor"]})
    assert refused.status_code == 422


async def _get(world: World) -> None:
    assert (await world.bound.get(f"/v1/memories/{world.mine}")).json()["content"] == MINE
    absent = (await world.bound.get("/v1/memories/01990000-0000-7000-8000-000000000001")).json()
    for memory_id in world.theirs:
        answer = await world.bound.get(f"/v1/memories/{memory_id}")
        assert (answer.status_code, answer.json() | {"trace_id": None}) == (404, absent | {"trace_id": None})


async def _patch(world: World) -> None:
    for memory_id in world.theirs:
        answer = await world.bound.patch(f"/v1/memories/{memory_id}", json={"pinned": True})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await world.bound.patch(f"/v1/memories/{world.mine}", json={"user_id": "ana"})).status_code == 200
    for other in ("bob", None):
        answer = await world.bound.patch(f"/v1/memories/{world.mine}", json={"user_id": other})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (403, "/user_id")
    assert (await world.free.get(f"/v1/memories/{world.mine}")).json()["user_id"] == "ana"


async def _delete(world: World) -> None:
    for memory_id in world.theirs:
        answer = await world.bound.delete(f"/v1/memories/{memory_id}", headers={"If-Match": '"99"'})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert (await world.bound.delete(f"/v1/memories/{memory_id}")).status_code == 404
    assert (await world.bound.delete(f"/v1/memories/{world.mine}")).status_code == 204


async def _forget(world: World) -> None:
    for memory_id in world.theirs:
        assert (await world.bound.post(f"/v1/memories/{memory_id}/forget")).status_code == 404
    assert (await world.bound.post(f"/v1/memories/{world.mine}/forget")).json()["state"] == "forgotten"


async def _restore(world: World) -> None:
    theirs = world.theirs[0]
    assert (await world.free.post(f"/v1/memories/{theirs}/forget")).status_code == 200
    assert (await world.bound.post(f"/v1/memories/{theirs}/restore")).status_code == 404
    assert (await world.free.get(f"/v1/memories/{theirs}")).json()["state"] == "forgotten"
    await world.free.delete(f"/v1/memories/{world.theirs.pop(0)}")
    assert (await world.bound.post(f"/v1/memories/{world.mine}/restore")).status_code == 200


async def _feedback(world: World) -> None:
    for memory_id in (*world.theirs, world.mine):
        answer = await world.bound.post(f"/v1/memories/{memory_id}/feedback", json={"value": "helpful"})
        assert answer.status_code == (200 if memory_id == world.mine else 404)
    theirs = await world.free.post(f"/v1/memories/{world.theirs[0]}/feedback", json={"value": "not_helpful"})
    assert theirs.json()["helpful"] == 0


async def _forget_matching(world: World) -> None:
    sly = {"OR": [{"user_id": "bob"}, {"session_id": "s"}]}
    for dry_run in (True, False):
        answer = await world.bound.post("/v1/memories/forget", json={"filters": sly, "dry_run": dry_run})
        assert (answer.json()["forgotten"], answer.json()["sample"]) == (1, [world.mine])
    refused = await world.bound.post("/v1/memories/forget", json={"filters": {"user_id": "bob"}})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/filters/user_id")


async def _merge(world: World) -> None:
    for ids in ([world.mine, world.theirs[0]], world.theirs[:2]):
        answer = await world.bound.post("/v1/memories/merge", json={"ids": ids})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    more = (await world.bound.post("/v1/memories", json={"content": "mine too"})).json()["id"]
    merged = await world.bound.post("/v1/memories/merge", json={"ids": [world.mine, more], "survivor": world.mine})
    assert merged.json()["merged"] == [more]


async def _undo_merge(world: World) -> None:
    twins = [
        (await world.free.post("/v1/memories", json={"content": THEIRS, "user_id": "bob", "actor": a})) for a in "xy"
    ]
    ids = [answer.json()["id"] for answer in twins]
    await world.free.post("/v1/memories/merge", json={"ids": ids, "survivor": ids[0]})
    answer = await world.bound.post("/v1/memories/merge/undo", json={"survivor": ids[0]})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await world.bound.post(f"/v1/memories/{ids[1]}/restore")).status_code == 404
    assert (await world.free.get(f"/v1/memories/{ids[1]}")).json()["state"] == "merged"
    mine = await world.bound.post("/v1/memories/merge/undo", json={"survivor": world.mine})
    assert mine.json() == {"restored": [], "complete": True}


async def _history(world: World) -> None:
    assert (await world.bound.get(f"/v1/memories/{world.mine}/history")).status_code == 200
    for memory_id in world.theirs:
        assert (await world.bound.get(f"/v1/memories/{memory_id}/history")).status_code == 404


async def _entities(world: World) -> None:
    found: dict[str, list[str]] = {}
    for type_ in ("user", "agent", "session"):
        answer = await world.bound.get("/v1/entities", params={"type": type_})
        found[type_] = [f"{entity['id']} {entity['memories']}" for entity in answer.json()["results"]]
    assert found == {"user": ["ana 1"], "agent": [], "session": ["s 1"]}


SCENARIOS: Final[dict[str, Scenario]] = {
    "POST /v1/memories": _write,
    "POST /v1/memories/batch": _write_batch,
    "POST /v1/memories/search": _search,
    "POST /v1/context": _context,
    "POST /v1/memories/why": _why,
    "GET /v1/memories": _list,
    "POST /v1/memories/list": _list_matching,
    "GET /v1/memories/{memory_id:uuid}": _get,
    "GET /v1/memories/{memory_id:uuid}/history": _history,
    "GET /v1/entities": _entities,
    **SESSION_SCENARIOS,
    "PATCH /v1/memories/{memory_id:uuid}": _patch,
    "DELETE /v1/memories/{memory_id:uuid}": _delete,
    "POST /v1/memories/{memory_id:uuid}/forget": _forget,
    "POST /v1/memories/{memory_id:uuid}/restore": _restore,
    "POST /v1/memories/{memory_id:uuid}/feedback": _feedback,
    "POST /v1/memories/forget": _forget_matching,
    "POST /v1/memories/merge": _merge,
    "POST /v1/memories/merge/undo": _undo_merge,
}


def routes() -> dict[str, HTTPRouteHandler]:
    """Every route of the service."""
    return {
        f"{method} {path}": handler
        for handler in (
            *ROUTES,
            *SESSION_ROUTES,
            *MARKER_ROUTES,
            *MERGE_ROUTES,
            *RECORD_ROUTES,
            *CONTEXT_ROUTES,
            *WHY_ROUTES,
        )
        for path in handler.paths
        for method in handler.http_methods
        if method != "OPTIONS"
    }


@pytest.mark.parametrize("route", sorted(routes()))
async def test_on_every_route(route: str, world: World) -> None:
    """A new route either has its scenario here, or is closed to bound keys."""
    before = await world.others()
    scenario = SCENARIOS.get(route)
    if scenario is None:
        method, _, path = route.partition(" ")
        path = path.replace("{memory_id:uuid}", world.theirs[0])
        answer = await world.bound.request(method, path, json={} if method != "GET" else None)
        assert answer.status_code in (403, 422), f"{route} has no scenario here and answers bound keys"
        assert "marker-" not in answer.text
    else:
        await scenario(world)
    assert await world.others() == before[-len(world.theirs) :]


async def test_a_repeated_request_of_another_bind_is_another_request(world: World, service: Service) -> None:
    headers = {"Idempotency-Key": "the same", "Authorization": ""}
    ids: dict[str, str] = {}
    for user in ("ana", "bob"):
        principal = Principal(
            tenant=service.tenant, scopes=SCOPES, key_id=user, request_id="request-of-test", bind_user_id=user
        )
        headers["Authorization"] = f"Bearer {InternalTokens(SECRET).sign(principal)}"
        for _ in range(2):
            answer = await world.bound.post("/v1/memories", json={"content": "equal words"}, headers=headers)
            assert (answer.status_code, answer.json()["user_id"]) == (201, user)
            assert ids.setdefault(user, answer.json()["id"]) == answer.json()["id"]
    assert ids["ana"] != ids["bob"]


async def test_a_repeated_request_does_not_show_what_went_to_another_user(world: World) -> None:
    headers = {"Idempotency-Key": "moved"}
    made = await world.bound.post("/v1/memories", json={"content": "hers for now"}, headers=headers)
    moved = await world.free.patch(f"/v1/memories/{made.json()['id']}", json={"user_id": "bob", "content": THEIRS})
    assert moved.status_code == 200
    again = await world.bound.post("/v1/memories", json={"content": "hers for now"}, headers=headers)
    assert again.status_code == 404
    assert "marker-" not in again.text

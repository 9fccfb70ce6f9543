"""Somebody whose key is bound to her, among others; and what she can and cannot do with what sessions observe."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx2
import msgspec

MINE: Final = "marker-ana keeps her keys under the red stone"
THEIRS: Final = "marker-bob keeps his keys under the red stone"


class World(msgspec.Struct):
    """A tenant with one memory of Ana and some of others, and a client whose key is bound to Ana."""

    bound: httpx2.AsyncClient
    free: httpx2.AsyncClient
    mine: str
    theirs: list[str]

    async def others(self) -> list[dict[str, Any]]:
        """What is not Ana's, as it is now."""
        found = [(await self.free.get(f"/v1/memories/{memory_id}")) for memory_id in self.theirs]
        assert [answer.status_code for answer in found] == [200] * len(found)
        return [{**answer.json(), "index_state": None} for answer in found]


Scenario = Callable[[World], Awaitable[None]]


async def _observed(world: World, **whose: str) -> list[str]:
    answer = await world.free.get("/v1/observations", params={"session_id": "s", **whose})
    return [its["content"] for its in answer.json()["results"]]


async def _observe(world: World) -> None:
    for body in ({"content": "seen"}, {"content": "heard", "user_id": "ana"}):
        assert (await world.bound.post("/v1/observations", json={"session_id": "s", **body})).status_code == 201
    assert await _observed(world, user_id="ana") == ["seen", "heard"]
    for other in ("bob", None):
        body = {"content": "x", "session_id": "s", "user_id": other}
        refused = await world.bound.post("/v1/observations", json=body)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/user_id")
    assert await _observed(world) == await _observed(world, user_id="bob") == []


async def _observe_many(world: World) -> None:
    body: dict[str, Any] = {"session_id": "s", "observations": [{"content": "seen"}]}
    assert (await world.bound.post("/v1/observations/batch", json=body)).status_code == 200
    assert await _observed(world, user_id="ana") == ["seen"]
    refused = await world.bound.post("/v1/observations/batch", json=body | {"user_id": "bob"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/user_id")
    assert await _observed(world, user_id="bob") == []


async def _list_observations(world: World) -> None:
    for whose in ({"user_id": "ana"}, {"user_id": "bob"}, {}):
        body = {"content": MINE if whose == {"user_id": "ana"} else THEIRS, "session_id": "s", **whose}
        assert (await world.free.post("/v1/observations", json=body)).status_code == 201
    answer = await world.bound.get("/v1/observations", params={"session_id": "s"})
    assert [its["content"] for its in answer.json()["results"]] == [MINE]
    refused = await world.bound.get("/v1/observations", params={"session_id": "s", "user_id": "bob"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "user_id")
    asked: dict[str, Any] = {"query": "keys", "include_short_term": {"session_id": "s"}}
    both = (await world.bound.post("/v1/memories/search", json=asked)).json()
    assert [its["content"] for its in both["short_term"]] == [MINE]
    asked["include_short_term"]["user_id"] = "bob"
    refused = await world.bound.post("/v1/memories/search", json=asked)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/include_short_term/user_id")


async def _delete_observation(world: World) -> None:
    ids: list[str] = []
    for whose in ({"user_id": "ana"}, {"user_id": "bob"}, {}, {"agent_id": "ana"}):
        body = {"content": THEIRS, "session_id": "s", **whose}
        ids.append((await world.free.post("/v1/observations", json=body)).json()["id"])
    mine, *theirs = ids
    absent = (await world.bound.delete("/v1/observations/01990000-0000-7000-8000-000000000001")).json()
    # Nor is anything learned of what has become a memory of somebody else's.
    ended = await world.free.post("/v1/sessions/end", json={"session_id": "s", "agent_id": "ana"})
    assert ended.json()["promoted"] == theirs[-1:]
    for other in (*theirs, *world.theirs):
        refused = await world.bound.delete(f"/v1/observations/{other}")
        assert (refused.status_code, refused.json() | {"trace_id": None}) == (404, absent | {"trace_id": None})
    assert await _observed(world, user_id="bob") == await _observed(world) == [THEIRS]
    assert (await world.bound.delete(f"/v1/observations/{mine}")).status_code == 204
    assert await _observed(world, user_id="ana") == []


async def _end_session(world: World) -> None:
    body = {"content": THEIRS, "session_id": "s", "user_id": "bob"}
    assert (await world.free.post("/v1/observations", json=body)).status_code == 201
    assert (await world.bound.post("/v1/sessions/end", json={"session_id": "s"})).json() == {"promoted": []}
    refused = await world.bound.post("/v1/sessions/end", json={"session_id": "s", "user_id": "bob"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (403, "/user_id")
    assert await _observed(world, user_id="bob") == [THEIRS]


SESSION_SCENARIOS: Final[dict[str, Scenario]] = {
    "POST /v1/observations": _observe,
    "POST /v1/observations/batch": _observe_many,
    "GET /v1/observations": _list_observations,
    "DELETE /v1/observations/{observation_id:uuid}": _delete_observation,
    "POST /v1/sessions/end": _end_session,
}

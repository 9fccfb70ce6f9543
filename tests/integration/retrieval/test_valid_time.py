"""What was so when: memories that hold for a time, and memories that supersede others."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
import uuid_utils.compat
from tests.integration.retrieval.conftest import Service

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

MARCH = "2026-03-01T00:00:00Z"


async def _write(client: httpx2.AsyncClient, content: str, **fields: Any) -> Json:
    response = await client.post("/v1/memories", json={"content": content, **fields})
    assert response.status_code in (200, 201), response.text
    return response.json()


async def _found(client: httpx2.AsyncClient, query: str, **more: Any) -> list[str]:
    response = await client.post("/v1/memories/search", json={"query": query, "touch": False, **more})
    assert response.status_code == 200, response.text
    assert response.json()["degraded"] == []
    return [memory["content"] for memory in response.json()["results"]]


async def _listed(client: httpx2.AsyncClient, **more: Any) -> set[str]:
    response = await client.post("/v1/memories/list", json=more)
    assert response.status_code == 200, response.text
    return {memory["content"] for memory in response.json()["results"]}


def _faults(response: httpx2.Response) -> list[str]:
    return [fault["pointer"] for fault in response.json()["errors"]]


class TestParisAndLyon:
    """Lived in Paris until March, in Lyon since."""

    @pytest.mark.parametrize("shown", [False, True], ids=["fresh", "indexed"])
    async def test_each_date_has_its_answer(self, client: httpx2.AsyncClient, service: Service, shown: bool) -> None:
        paris = await _write(client, "Ana lives in Paris", user_id="ana", valid_from="2024-06-01T00:00:00Z")
        lyon = await _write(client, "Ana lives in Lyon", user_id="ana", valid_from=MARCH, supersedes=paris["id"])
        await _write(client, "Ana lives on bread and cheese", user_id="ana")
        if shown:
            await service.tell_index(shown=True)

        async def lived(at: str | None) -> list[str]:
            asked = {} if at is None else {"valid_at": at}
            found = await _found(client, "Where does Ana live?", filters={"user_id": "ana"}, **asked)
            return sorted(content.split()[-1] for content in found if "bread" not in content)

        assert await lived("2024-01-15T00:00:00Z") == []
        assert await lived("2025-07-14T00:00:00Z") == ["Paris"]
        assert await lived("2026-02-28T23:59:59.999999Z") == ["Paris"]
        assert await lived(MARCH) == ["Lyon"]
        assert await lived(None) == ["Lyon"]
        assert await lived("any") == ["Lyon", "Paris"]
        assert lyon["valid_from"] == MARCH
        assert lyon["valid_to"] is None

        old = (await client.get(f"/v1/memories/{paris['id']}")).json()
        assert (old["valid_to"], old["superseded_by"], old["version"]) == (MARCH, lyon["id"], 2)
        history = (await client.get(f"/v1/memories/{paris['id']}/history")).json()["results"]
        assert [entry["event"] for entry in history] == ["superseded", "created"]
        assert history[0]["changes"] == {"valid_to": None, "superseded_by": None}
        assert [
            entry["event"] for entry in (await client.get(f"/v1/memories/{lyon['id']}/history")).json()["results"]
        ] == ["created"]
        successor = {"superseded_by": lyon["id"]}
        assert await _listed(client, filters=successor, valid_at="any") == {"Ana lives in Paris"}

    async def test_without_the_index_and_by_words_alone_it_is_the_same(self, client: httpx2.AsyncClient) -> None:
        paris = await _write(client, "Ana lives in Paris")
        await _write(client, "Ana lives in Lyon", valid_from=MARCH, supersedes=paris["id"])
        for mode in ("lexical", "dense", "hybrid"):
            assert await _found(client, "Ana lives", mode=mode) == ["Ana lives in Lyon"]
            assert await _found(client, "Ana lives", mode=mode, valid_at="2025-01-01T00:00:00Z") == [
                "Ana lives in Paris"
            ]

    async def test_a_replay_asks_what_held_at_its_own_clock(self, client: httpx2.AsyncClient) -> None:
        paris = await _write(client, "Ana lives in Paris")
        await _write(client, "Ana lives in Lyon", valid_from=MARCH, supersedes=paris["id"])
        assert await _found(client, "Ana lives", now="2025-01-01T00:00:00Z") == ["Ana lives in Paris"]


async def test_hundreds_that_hold_no_more_leave_room_for_what_does(
    client: httpx2.AsyncClient, service: Service
) -> None:
    """All are nearer to the query than what holds, and the index, which knows of no bounds, names them first."""
    over = [{"content": "mood of Ana", "user_id": str(n), "valid_to": MARCH} for n in range(900)]
    now = [{"content": f"mood of Ana today: calm {n}", "valid_from": MARCH} for n in range(5)]
    for part in (over, now):
        assert (await client.post("/v1/memories/batch", json={"memories": part})).status_code == 200
    await service.tell_index(shown=True)
    for mode in ("dense", "lexical", "hybrid"):
        found = await _found(client, "mood of Ana", top_k=5, mode=mode)
        assert sorted(found) == [its["content"] for its in now]
        found = await _found(client, "mood of Ana", top_k=5, mode=mode, valid_at="2025-01-01T00:00:00Z")
        assert found == ["mood of Ana"] * 5


class TestLists:
    async def test_a_list_has_what_holds_at_the_moment_that_it_names(self, client: httpx2.AsyncClient) -> None:
        paris = await _write(client, "Paris")
        await _write(client, "Lyon", valid_from=MARCH, supersedes=paris["id"])
        await _write(client, "always")
        assert await _listed(client) == {"Lyon", "always"}
        assert await _listed(client, valid_at="2025-01-01T00:00:00Z") == {"Paris", "always"}
        assert await _listed(client, valid_at="any") == {"Paris", "Lyon", "always"}
        assert await _listed(client, valid_at=1_740_000_000.5) == {"Paris", "always"}
        for at, count in (("any", 3), ("2025-01-01T00:00:00Z", 2), ("1740000000.5", 2), (None, 2)):
            page = await client.get("/v1/memories", params={} if at is None else {"valid_at": at})
            assert len(page.json()["results"]) == count

    async def test_the_filter_knows_the_bounds(self, client: httpx2.AsyncClient) -> None:
        await _write(client, "open")
        await _write(client, "from", valid_from=MARCH)
        await _write(client, "until", valid_to=MARCH)
        assert await _listed(client, filters={"valid_to": None}) == {"open", "from"}
        assert await _listed(client, filters={"valid_from": {"lte": MARCH}}) == {"from"}
        assert await _listed(client, filters={"valid_to": {"exists": True}}, valid_at="any") == {"until"}

    async def test_pages_go_on_at_the_same_moment_only(self, client: httpx2.AsyncClient) -> None:
        for n in range(3):
            await _write(client, str(n))
        first = (await client.post("/v1/memories/list", json={"limit": 1})).json()
        second = await client.post("/v1/memories/list", json={"limit": 1, "cursor": first["next_cursor"]})
        assert second.status_code == 200
        other = await client.post(
            "/v1/memories/list", json={"limit": 1, "cursor": first["next_cursor"], "valid_at": "any"}
        )
        assert other.status_code == 422
        assert _faults(other) == ["/cursor"]


class TestBounds:
    @pytest.mark.parametrize(
        ("fields", "pointer"),
        [
            ({"valid_from": MARCH, "valid_to": MARCH}, "/valid_to"),
            ({"valid_from": MARCH, "valid_to": "2026-02-01T00:00:00Z"}, "/valid_to"),
            ({"valid_from": 1e20}, "/valid_from"),
            ({"occurred_at": 1e20, "supersedes": "01990000-0000-7000-8000-000000000001"}, "/occurred_at"),
        ],
    )
    async def test_what_can_never_hold_is_refused(self, client: httpx2.AsyncClient, fields: Json, pointer: str) -> None:
        single = await client.post("/v1/memories", json={"content": "a", **fields})
        assert (single.status_code, _faults(single)) == (422, [pointer])
        batch = await client.post(
            "/v1/memories/batch", json={"memories": [{"content": "b"}, {"content": "a", **fields}]}
        )
        assert (batch.status_code, _faults(batch)) == (422, [f"/memories/1{pointer}"])
        assert await _listed(client, valid_at="any") == set()

    async def test_a_patch_moves_opens_and_closes_them(self, client: httpx2.AsyncClient) -> None:
        memory = await _write(client, "a", valid_from=MARCH)
        url = f"/v1/memories/{memory['id']}"
        closed = await client.patch(url, json={"valid_to": "2026-04-01T00:00:00.000001Z"})
        assert closed.json()["valid_to"] == "2026-04-01T00:00:00.000001Z"
        assert await _listed(client) == set()
        refused = await client.patch(url, json={"valid_to": MARCH})
        assert (refused.status_code, _faults(refused)) == (422, ["/valid_to"])
        opened = await client.patch(url, json={"valid_to": None, "valid_from": None})
        assert (opened.json()["valid_from"], opened.json()["valid_to"], opened.json()["version"]) == (None, None, 3)
        assert await _listed(client, valid_at="1999-01-01T00:00:00Z") == {"a"}

    async def test_what_holds_no_more_swallows_no_new_write(self, client: httpx2.AsyncClient) -> None:
        paris = await _write(client, "in Paris")
        lyon = await _write(client, "in Lyon", valid_from=MARCH, supersedes=paris["id"])
        back = await _write(client, "in Paris", supersedes=lyon["id"])
        assert not back["deduplicated"]
        assert back["id"] != paris["id"]
        assert await _listed(client) == {"in Paris"}
        again = await _write(client, "in Lyon", valid_from=MARCH, valid_to=back["valid_from"])
        assert again["deduplicated"]
        assert again["id"] == lyon["id"]

    @pytest.mark.parametrize("at", ["yesterday", "", True, [], "2026-13-01T00:00:00Z", 1e300])
    async def test_a_moment_that_is_none_is_refused(self, client: httpx2.AsyncClient, at: Any) -> None:
        for path, body in (("search", {"query": "a"}), ("list", {})):
            response = await client.post(f"/v1/memories/{path}", json={**body, "valid_at": at})
            assert (response.status_code, _faults(response)) == (422, ["/valid_at"])


class TestSuperseding:
    async def test_without_a_time_it_holds_from_now_on_or_since_it_occurred(self, client: httpx2.AsyncClient) -> None:
        before = datetime.now(UTC) - timedelta(seconds=5)
        first = await _write(client, "one")
        second = await _write(client, "two", supersedes=first["id"])
        assert before < datetime.fromisoformat(second["valid_from"]) < datetime.now(UTC) + timedelta(seconds=5)
        assert await _found(client, "one two") == ["two"]
        third = await _write(client, "three", supersedes=second["id"], occurred_at="2099-01-01T00:00:00Z")
        assert third["valid_from"] == "2099-01-01T00:00:00Z"
        assert await _found(client, "two three") == ["two"]

    async def test_what_cannot_be_superseded_is_refused_and_nothing_is_stored(self, client: httpx2.AsyncClient) -> None:
        mine = await _write(client, "mine", user_id="u", valid_from=MARCH)
        theirs = await _write(client, "theirs", user_id="v")
        hidden = await _write(client, "hidden", user_id="u")
        await client.post(f"/v1/memories/{hidden['id']}/forget")
        over = await _write(client, "over", user_id="u", valid_to="2020-01-01T00:00:00Z")
        done = await _write(client, "done", user_id="u")
        await _write(client, "since", user_id="u", supersedes=done["id"])
        expired = await _write(client, "expired", user_id="u", expires_at="2020-01-01T00:00:00Z")
        for old, more, status, pointer in (
            (str(uuid_utils.compat.uuid7()), {}, 422, "/supersedes"),
            (theirs["id"], {}, 422, "/supersedes"),
            (expired["id"], {}, 422, "/supersedes"),
            (hidden["id"], {}, 409, "/supersedes"),
            (over["id"], {}, 409, "/supersedes"),
            (done["id"], {}, 409, "/supersedes"),
            (mine["id"], {"valid_from": MARCH}, 422, "/valid_from"),
            (mine["id"], {"valid_from": MARCH, "valid_to": MARCH}, 422, "/valid_to"),
        ):
            body = {"content": "new", "user_id": "u", "supersedes": old, **more}
            response = await client.post("/v1/memories", json=body)
            assert (response.status_code, _faults(response)) == (status, [pointer]), response.text
        assert "new" not in await _listed(client, valid_at="any")

    async def test_a_batch_supersedes_all_or_nothing(self, client: httpx2.AsyncClient) -> None:
        old = [await _write(client, f"old {n}") for n in range(3)]
        new = [{"content": f"new {n}", "supersedes": its["id"]} for n, its in enumerate(old)]
        twice = await client.post("/v1/memories/batch", json={"memories": [*new, {**new[0], "content": "more"}]})
        assert (twice.status_code, _faults(twice)) == (422, ["/memories/3/supersedes"])
        missing = {"content": "x", "supersedes": str(uuid_utils.compat.uuid7())}
        refused = await client.post("/v1/memories/batch", json={"memories": [*new, missing]})
        assert (refused.status_code, _faults(refused)) == (422, ["/memories/3/supersedes"])
        assert await _listed(client) == {"old 0", "old 1", "old 2"}
        done = await client.post("/v1/memories/batch", json={"memories": new})
        assert [item["status"] for item in done.json()["results"]] == [201] * 3
        assert await _listed(client) == {"new 0", "new 1", "new 2"}

    async def test_what_the_request_writes_itself_is_not_superseded(self, client: httpx2.AsyncClient) -> None:
        named = await _write(client, "a", external_id="x")
        itself = await client.post("/v1/memories", json={"content": "b", "external_id": "x", "supersedes": named["id"]})
        assert (itself.status_code, _faults(itself)) == (422, ["/supersedes"])
        assert await _listed(client) == {"a"}

    async def test_a_repeat_finds_what_it_did(self, client: httpx2.AsyncClient) -> None:
        old = await _write(client, "old")
        body = {"content": "new", "supersedes": old["id"]}
        keyed = [await client.post("/v1/memories", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in keyed] == [201, 201]
        assert keyed[0].json()["id"] == keyed[1].json()["id"]
        dated = await _write(client, "newer", supersedes=keyed[0].json()["id"], valid_from="2099-01-01T00:00:00Z")
        same = await _write(client, "newer", supersedes=keyed[0].json()["id"], valid_from="2099-01-01T00:00:00Z")
        assert (same["id"], same["deduplicated"]) == (dated["id"], True)

    async def test_of_two_at_once_one_supersedes(self, client: httpx2.AsyncClient) -> None:
        for n in range(5):
            old = await _write(client, f"old {n}")
            bodies = [{"content": f"new {n} of {k}", "supersedes": old["id"]} for k in range(4)]
            answers = await asyncio.gather(*(client.post("/v1/memories", json=body) for body in bodies))
            assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
            winner = next(answer.json() for answer in answers if answer.status_code == 201)
            lost = next(answer.json() for answer in answers if answer.status_code == 409)
            assert lost["id"] == winner["id"]
            after = (await client.get(f"/v1/memories/{old['id']}")).json()
            assert (after["superseded_by"], after["valid_to"]) == (winner["id"], winner["valid_from"])

    async def test_what_is_opened_again_can_be_superseded_again(self, client: httpx2.AsyncClient) -> None:
        old = await _write(client, "old")
        await _write(client, "wrong", supersedes=old["id"])
        opened = await client.patch(f"/v1/memories/{old['id']}", json={"valid_to": None})
        assert (opened.json()["valid_to"], opened.json()["superseded_by"]) == (None, None)
        right = await _write(client, "right", supersedes=old["id"])
        assert (await client.get(f"/v1/memories/{old['id']}")).json()["superseded_by"] == right["id"]

    async def test_what_ended_stays_so_when_what_came_after_is_taken_away(self, client: httpx2.AsyncClient) -> None:
        forgotten, deleted = [await _write(client, text) for text in ("one", "two")]
        hidden, gone = [await _write(client, "after", supersedes=its["id"]) for its in (forgotten, deleted)]
        assert (await client.post(f"/v1/memories/{hidden['id']}/forget")).status_code == 200
        assert (await client.delete(f"/v1/memories/{gone['id']}")).status_code == 204
        assert await _listed(client) == set()
        for old, by in ((forgotten, hidden), (deleted, gone)):
            assert (await client.get(f"/v1/memories/{old['id']}")).json()["superseded_by"] == by["id"]
            body = {"content": "again", "supersedes": old["id"]}
            assert (await client.post("/v1/memories", json=body)).status_code == 409


class TestMerging:
    async def test_memories_of_different_times_are_not_merged(self, client: httpx2.AsyncClient) -> None:
        one = await _write(client, "a", valid_from=MARCH)
        other = await _write(client, "a")
        merged = await client.post("/v1/memories/merge", json={"ids": [one["id"], other["id"]]})
        assert (merged.status_code, _faults(merged)) == (422, ["/ids/1"])

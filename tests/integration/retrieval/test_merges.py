"""Merging memories by their ids and taking that back, as a client of the service sees it."""

from typing import Any, Final

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio

NOBODY: Final = "01990000-0000-7000-8000-000000000001"


async def write(client: httpx2.AsyncClient, content: str, **fields: Any) -> str:
    answer = await client.post("/v1/memories", json={"content": content, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def read(client: httpx2.AsyncClient, memory_id: str) -> dict[str, Any]:
    """The memory but for what grows with every change."""
    memory = (await client.get(f"/v1/memories/{memory_id}")).json()
    return {name: value for name, value in memory.items() if name not in {"version", "updated_at", "index_state"}}


async def merge(client: httpx2.AsyncClient, *ids: str, **more: Any) -> httpx2.Response:
    headers = more.pop("headers", {})
    return await client.post("/v1/memories/merge", json={"ids": list(ids), **more}, headers=headers)


async def undo(client: httpx2.AsyncClient, survivor: str, **more: Any) -> httpx2.Response:
    return await client.post("/v1/memories/merge/undo", json={"survivor": survivor}, **more)


async def searched(client: httpx2.AsyncClient, query: str) -> set[str]:
    answer = await client.post("/v1/memories/search", json={"query": query, "top_k": 50})
    return {found["id"] for found in answer.json()["results"]}


class TestMerging:
    async def test_the_survivor_stands_for_the_others_at_once(
        self, client: httpx2.AsyncClient, service: Service
    ) -> None:
        tea = await write(client, "zebras like tea", scene=["a"], priority=5)
        gras = await write(client, "zebras like grass", scene=["b"], importance=0.9)
        await service.tell_index(shown=True)
        answer = await merge(client, tea, gras)
        body = answer.json()
        assert (answer.status_code, answer.headers["etag"], body["merged"]) == (200, '"2"', [gras])
        survivor = body["survivor"]
        assert (survivor["id"], survivor["scene"], survivor["importance"]) == (tea, ["a", "b"], 0.9)
        assert await searched(client, "zebras grass") == {tea}
        gone = await read(client, gras)
        assert (gone["state"], gone["merged_into"], gone["content"]) == ("merged", tea, "zebras like grass")
        assert gone["purge_at"] is not None
        scened = await client.post("/v1/memories/list", json={"filters": {"scene": ["b"]}})
        assert [memory["id"] for memory in scened.json()["results"]] == [tea]

    async def test_the_one_that_is_named_survives(self, client: httpx2.AsyncClient) -> None:
        first, second = await write(client, "one", priority=5), await write(client, "two")
        assert (await merge(client, first, second, survivor=second)).json()["survivor"]["id"] == second

    async def test_is_done_once_for_each_idempotency_key(self, client: httpx2.AsyncClient) -> None:
        first, second = await write(client, "one", priority=5), await write(client, "two")
        headers = {"Idempotency-Key": "a key"}
        done = await merge(client, first, second, headers=headers)
        await undo(client, first)
        again = await merge(client, first, second, headers=headers)
        assert again.headers["idempotency-replayed"] == "true"
        assert (again.json()["merged"], done.json()["merged"]) == ([second], [second])
        assert (await read(client, second))["state"] == "active"

    async def test_says_which_field_is_wrong_and_changes_nothing(self, client: httpx2.AsyncClient) -> None:
        mine = await write(client, "one", user_id="u", scene=[f"a{n}" for n in range(20)])
        other = await write(client, "two", user_id="v")
        typed = await write(client, "three", user_id="u", memory_type="insight")
        pinned = await write(client, "four", user_id="u", pinned=True)
        many = await write(client, "five", user_id="u", scene=[f"b{n}" for n in range(20)])
        hidden = await write(client, "six", user_id="u")
        await client.post(f"/v1/memories/{hidden}/forget")
        before = [await read(client, its) for its in (mine, other, typed, pinned, many, hidden)]
        for ids, more, status, pointer in (
            ([mine], {}, 422, "/ids"),
            ([mine, mine], {}, 422, "/ids/1"),
            ([mine, many], {"survivor": other}, 422, "/survivor"),
            ([mine, NOBODY], {}, 404, "/ids/1"),
            ([mine, other], {}, 422, "/ids/1"),
            ([mine, typed], {}, 422, "/ids/1"),
            ([mine, hidden], {}, 409, "/ids/1"),
            ([mine, pinned], {"survivor": mine}, 409, "/ids/1"),
            ([mine, many], {}, 409, None),
            ([mine, "nothing"], {}, 422, "/ids/1"),
        ):
            answer = await merge(client, *ids, **more)
            told = [fault["pointer"] for fault in answer.json().get("errors", [])]
            assert (answer.status_code, told) == (status, [pointer] if pointer else []), (ids, answer.text)
        assert [await read(client, its) for its in (mine, other, typed, pinned, many, hidden)] == before


class TestTakingBack:
    async def test_restoring_one_gives_back_what_it_brought(self, client: httpx2.AsyncClient) -> None:
        ids = [
            await write(client, text, scene=[text], importance=importance, priority=priority)
            for text, importance, priority in (("one", 0.1, 4), ("two", 0.9, 3), ("three", 0.5, 3))
        ]
        before = [await read(client, its) for its in ids]
        await merge(client, *ids)
        back = await client.post(f"/v1/memories/{ids[1]}/restore")
        assert (back.status_code, await read(client, ids[1])) == (200, before[1])
        survivor = await read(client, ids[0])
        assert (survivor["scene"], survivor["importance"]) == (["one", "three"], 0.5)
        await client.post(f"/v1/memories/{ids[2]}/restore")
        assert [await read(client, its) for its in ids] == before

    async def test_no_memory_stands_for_more_others_than_can_be_given_back(
        self, client: httpx2.AsyncClient, database: Database, service: Service
    ) -> None:
        first, second, third = [await write(client, text) for text in ("one", "two", "three")]
        await merge(client, first, second, survivor=first)
        async with database.tenant(service.tenant) as connection:
            await connection.execute(
                "UPDATE memory SET merges = jsonb_set(merges, '{taken}', (SELECT jsonb_agg(jsonb_build_object("
                "'id', gen_random_uuid())) FROM generate_series(1, 10000))) WHERE merges IS NOT NULL"
            )
        answer = await merge(client, first, third, survivor=first)
        assert (answer.status_code, "10,001" in answer.json()["detail"]) == (409, True), answer.text
        assert (await read(client, third))["state"] == "active"

    async def test_undo_restores_all_and_again_none(self, client: httpx2.AsyncClient) -> None:
        ids = [await write(client, text, scene=[text]) for text in ("one", "two", "three")]
        before = [await read(client, its) for its in ids]
        survivor = (await merge(client, *ids)).json()["survivor"]["id"]
        answer = await undo(client, survivor)
        assert answer.json() == {"restored": sorted(set(ids) - {survivor}), "complete": True}
        assert [await read(client, its) for its in ids] == before
        assert (await undo(client, survivor)).json() == {"restored": [], "complete": True}
        assert (await undo(client, NOBODY)).status_code == 404

    async def test_what_was_merged_outlives_the_survivor(self, client: httpx2.AsyncClient) -> None:
        first, second = await write(client, "one", priority=5), await write(client, "two")
        before = await read(client, second)
        await merge(client, first, second)
        assert (await client.delete(f"/v1/memories/{first}")).status_code == 204
        assert (await read(client, second))["merged_into"] == first
        assert (await client.post(f"/v1/memories/{second}/restore")).status_code == 200
        assert await read(client, second) == before

    async def test_a_twin_that_has_come_meanwhile_is_named(self, client: httpx2.AsyncClient) -> None:
        first, second = await write(client, "one", priority=5), await write(client, "two")
        await merge(client, first, second)
        twin = await write(client, "two")
        for answer in (await client.post(f"/v1/memories/{second}/restore"), await undo(client, first)):
            assert (answer.status_code, answer.json()["code"], answer.json()["id"]) == (409, "duplicate_memory", twin)
        assert (await read(client, second))["state"] == "merged"

    async def test_a_named_one_that_is_written_again_is_itself_again(
        self, client: httpx2.AsyncClient, database: Database, service: Service
    ) -> None:
        first = await write(client, "one", priority=5, scene=["a"])
        second = await write(client, "two", external_id="mine", scene=["b"])
        third = await write(client, "three", scene=["c"])
        await merge(client, first, second, third)
        again = await client.post("/v1/memories", json={"content": "two", "external_id": "mine"})
        assert (again.status_code, again.json()["state"], again.json()["merged_into"]) == (200, "active", None)
        await undo(client, first)
        survivor = await read(client, first)
        assert (survivor["scene"], (await read(client, third))["state"]) == (["a", "b"], "active")
        async with database.tenant(service.tenant) as connection:
            assert await connection.fetchval("SELECT count(*) FROM memory WHERE merges IS NOT NULL") == 0

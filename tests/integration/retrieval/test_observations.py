"""Short-term memory over HTTP: what sessions hold, what becomes a memory, once and in order."""

from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

pytestmark = pytest.mark.anyio

SESSION = {"session_id": "s", "user_id": "ana", "agent_id": "guide"}


async def observe(client: httpx2.AsyncClient, content: str, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/observations", json={"content": content, **SESSION, **fields})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def held(client: httpx2.AsyncClient, **session: str) -> list[dict[str, Any]]:
    answer = await client.get("/v1/observations", params=SESSION | session)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


async def memories(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    answer = await client.get("/v1/memories", params={"sort": "created_at", "limit": 1000})
    return answer.json()["results"]


async def set_rules(service: Service, **rules: Any) -> None:
    async with service.database.tenant(service.tenant) as connection:
        await connection.execute(
            "UPDATE tenant SET policy = policy || $2 WHERE id = $1", service.tenant, {"short_term": rules}
        )


class TestFirstInFirstOut:
    async def test_the_oldest_becomes_a_memory_of_the_same_id_when_there_is_no_room(
        self, client: httpx2.AsyncClient
    ) -> None:
        made = [await observe(client, f"thing {n}") for n in range(7)]
        assert [taken["promoted"] for taken in made] == [[]] * 5 + [[made[0]["id"]], [made[1]["id"]]]
        assert [its["content"] for its in await held(client)] == [f"thing {n}" for n in range(2, 7)]
        found = {memory["id"]: memory for memory in await memories(client)}
        assert found.keys() == {made[0]["id"], made[1]["id"]}
        first = found[made[0]["id"]]
        assert (first["content"], first["user_id"], first["agent_id"], first["session_id"]) == (
            "thing 0",
            "ana",
            "guide",
            "s",
        )


class TestReadingBoth:
    async def test_one_search_returns_what_the_session_holds_in_order_and_what_is_recalled_and_nothing_twice(
        self, client: httpx2.AsyncClient
    ) -> None:
        made = [await observe(client, f"the lighthouse keeper counts {n} ships") for n in range(8)]
        asked = {"query": "lighthouse keeper ships", "include_short_term": SESSION}
        found = (await client.post("/v1/memories/search", json=asked)).json()
        assert [its["id"] for its in found["short_term"]] == [taken["id"] for taken in made[3:]]
        assert {memory["id"] for memory in found["results"]} == {taken["id"] for taken in made[:3]}
        other = {"query": "lighthouse", "include_short_term": SESSION | {"session_id": "another"}}
        assert (await client.post("/v1/memories/search", json=other)).json()["short_term"] == []
        assert "short_term" not in (await client.post("/v1/memories/search", json={"query": "lighthouse"})).json()

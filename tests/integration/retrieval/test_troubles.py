"""What users of other memory stores ran into, where no test of a feature says it already; see docs/troubles.md."""

from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

ODD_IDS = ["-", "a-b.c/d@e:f", "user-1@example.com", "urn:x:1/2", "..", "@", "a b", "-1", "1e5", "null", "用户/一"]


async def write(client: httpx2.AsyncClient, content: str, **fields: Any) -> Json:
    answer = await client.post("/v1/memories", json={"content": content, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def found(client: httpx2.AsyncClient, query: str, **asked: Any) -> list[str]:
    answer = await client.post("/v1/memories/search", json={"query": query, "touch": False, **asked})
    assert answer.status_code == 200, answer.text
    return [one["content"] for one in answer.json()["results"]]


async def listed(client: httpx2.AsyncClient, filters: Json) -> list[str]:
    answer = await client.post("/v1/memories/list", json={"filters": filters})
    assert answer.status_code == 200, answer.text
    return [one["content"] for one in answer.json()["results"]]


class TestMetadata:
    async def test_that_names_another_owner_state_or_time_changes_nothing(self, client: httpx2.AsyncClient) -> None:
        lies: Json = {
            "id": "01990000-0000-7000-8000-000000000001",
            "tenant_id": "01990000-0000-7000-8000-000000000002",
            "user_id": "mallory",
            "agent_id": "mallory",
            "state": "forgotten",
            "expires_at": "2001-01-01T00:00:00Z",
            "priority": 5,
            "content": "something else",
        }
        written = await write(client, "Ana likes the harbour", user_id="ana", metadata=lies)
        path = f"/v1/memories/{written['id']}"
        patched = await client.patch(path, json={"metadata": {**lies, "user_id": "eve"}})
        assert patched.status_code == 200
        for memory in (written, patched.json(), (await client.get(path)).json()):
            assert (memory["user_id"], memory["agent_id"], memory["state"]) == ("ana", None, "active")
            assert (memory["priority"], memory["expires_at"], memory["content"]) == (3, None, "Ana likes the harbour")
        for name in ("mallory", "eve"):
            assert await found(client, "harbour", filters={"user_id": name}) == []
            assert await listed(client, {"user_id": name}) == []
            assert await listed(client, {"agent_id": name}) == []
        assert await found(client, "harbour", filters={"user_id": "ana"}) == ["Ana likes the harbour"]
        assert await listed(client, {"metadata.user_id": "eve"}) == ["Ana likes the harbour"]

    async def test_keys_of_it_that_are_no_field_are_refused_beside_it(self, client: httpx2.AsyncClient) -> None:
        for name in ("id", "tenant_id", "state", "version", "created_at"):
            answer = await client.post("/v1/memories", json={"content": "a", name: "x"})
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{name}")


class TestIds:
    @pytest.mark.parametrize("shown", [False, True])
    async def test_of_any_characters_are_written_found_and_told_apart(
        self, service: Service, client: httpx2.AsyncClient, shown: bool
    ) -> None:
        for id_ in ODD_IDS:
            who = {"user_id": id_, "agent_id": id_, "session_id": id_}
            await write(client, f"the harbour of {id_}", external_id=id_, **who)
        await service.tell_index(shown=shown)
        for id_ in ODD_IDS:
            for name in ("user_id", "agent_id", "session_id", "external_id"):
                assert await found(client, "harbour", filters={name: id_}) == [f"the harbour of {id_}"], (name, id_)
                assert await listed(client, {name: {"in": [id_, "nobody"]}}) == [f"the harbour of {id_}"], (name, id_)
            page = await client.get("/v1/memories", params={"user_id": id_})
            assert [one["user_id"] for one in page.json()["results"]] == [id_]
        entities = (await client.get("/v1/entities", params={"type": "user", "limit": 1000})).json()["results"]
        assert sorted(one["id"] for one in entities) == sorted(ODD_IDS)


class TestChinese:
    async def test_words_are_found_by_words_alone(self, client: httpx2.AsyncClient) -> None:
        await write(client, "订单 ORD-7781 已经退款成功，客户很满意。")
        await write(client, "用户喜欢在周末去杭州西湖边骑自行车。")
        await write(client, "The refund for another order was late.")
        assert await found(client, "退款", mode="lexical") == ["订单 ORD-7781 已经退款成功，客户很满意。"]
        assert await found(client, "西湖骑车", mode="lexical") == ["用户喜欢在周末去杭州西湖边骑自行车。"]
        assert (await found(client, "ORD-7781", mode="lexical"))[0].startswith("订单")
        assert await found(client, "北京", mode="lexical") == []

"""What a tenant's policy decides where a request does not say."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import SECRET, Service

from memplane_core.domain.errors import InvalidRequest
from memplane_core.domain.tenancy import SCOPES, Principal
from memplane_core.security.internal import InternalTokens
from memplane_core.storage.policies import change_policy, policy_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(service: Service) -> AsyncGenerator[httpx2.AsyncClient]:
    """Each test sets the policy before its first request: it is remembered for seconds."""
    async with service.running() as running:
        yield running


async def _set(service: Service, **changes: Any) -> None:
    async with service.database.tenant(service.tenant) as connection:
        await change_policy(service.tenant, connection, changes=changes)


async def _search(client: httpx2.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    answer = await client.post("/v1/memories/search", json={"query": "tea or coffee", "explain": True, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


class TestWrites:
    async def test_take_the_policys_importance_unless_they_have_one(
        self, client: httpx2.AsyncClient, service: Service
    ) -> None:
        await _set(service, default_importance=0.0)
        assert (await client.post("/v1/memories", json={"content": "a"})).json()["importance"] == 0.0
        given = await client.post("/v1/memories", json={"content": "b", "importance": 1})
        assert given.json()["importance"] == 1

    async def test_change_nothing_of_memories_that_are_there(
        self, client: httpx2.AsyncClient, service: Service
    ) -> None:
        body = {"content": "a", "external_id": "e"}
        assert (await client.post("/v1/memories", json={**body, "importance": 0.9})).status_code == 201
        await _set(service, default_importance=0.1)
        async with service.running() as fresh:
            assert (await fresh.post("/v1/memories", json=body)).json()["importance"] == 0.9


class TestSearches:
    async def test_are_ranked_by_the_policy_unless_they_say_otherwise(
        self, client: httpx2.AsyncClient, service: Service
    ) -> None:
        await _set(service, weights={"match": 0, "recency": 0, "importance": 1, "priority": 0}, min_relevance=0.0)
        await client.post("/v1/memories", json={"content": "tea or coffee", "importance": 0.1})
        await client.post("/v1/memories", json={"content": "the weather", "importance": 0.9})
        assert [found["content"] for found in await _search(client)] == ["the weather", "tea or coffee"]
        assert [found["score"] for found in await _search(client)] == [0.9, 0.1]
        by_match = {"match": 1, "recency": 0, "importance": 0, "priority": 0}
        assert (await _search(client, weights=by_match))[0]["content"] == "tea or coffee"
        assert (await _search(client, preset="dbgpt"))[0]["content"] == "tea or coffee"

    async def test_leave_out_what_the_policy_holds_to_be_irrelevant(
        self, client: httpx2.AsyncClient, service: Service
    ) -> None:
        await _set(service, min_relevance=1.0)
        await client.post("/v1/memories", json={"content": "the weather"})
        assert await _search(client) == []
        assert len(await _search(client, min_relevance=0)) == 1

    async def test_forget_at_the_policys_pace(self, client: httpx2.AsyncClient, service: Service) -> None:
        await _set(service, decay_rate=0.5)
        written = await client.post("/v1/memories", json={"content": "tea or coffee"})
        clock = written.json()["created_at"]
        [found] = await _search(client, now=clock, touch=False)
        assert found["explain"]["recency"] == pytest.approx(1.0)
        async with service.database.tenant(service.tenant) as connection:
            await connection.execute("UPDATE memory_usage SET last_accessed_at = last_accessed_at - interval '2 hours'")
        [later] = await _search(client, now=clock, touch=False)
        assert later["explain"]["recency"] == pytest.approx(0.25)


class TestNamingAUser:
    async def test_is_asked_of_writes_searches_and_lists(self, client: httpx2.AsyncClient, service: Service) -> None:
        await _set(service, require_user=True)
        refusals = [
            (await client.post("/v1/memories", json={"content": "a"}), "/user_id"),
            (await client.post("/v1/memories", json={"content": "a", "user_id": None}), "/user_id"),
            (
                await client.post(
                    "/v1/memories/batch", json={"memories": [{"content": "a", "user_id": "ana"}, {"content": "b"}]}
                ),
                "/memories/1/user_id",
            ),
            (await client.post("/v1/memories/search", json={"query": "a"}), "/filters/user_id"),
            (
                await client.post("/v1/memories/search", json={"query": "a", "filters": {"user_id": {"ne": "bob"}}}),
                "/filters/user_id",
            ),
            (await client.post("/v1/memories/list", json={}), "/filters/user_id"),
            (await client.get("/v1/memories"), "user_id"),
        ]
        for answer, pointer in refusals:
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
        written = await client.post("/v1/memories", json={"content": "a", "user_id": "ana"})
        assert written.status_code == 201
        for answer in (
            await client.post("/v1/memories/search", json={"query": "a", "filters": {"user_id": ["ana", "bob"]}}),
            await client.post("/v1/memories/list", json={"filters": {"user_id": "ana", "priority": 3}}),
            await client.get("/v1/memories", params={"user_id": "ana"}),
        ):
            assert [memory["user_id"] for memory in answer.json()["results"]] == ["ana"]
        path = f"/v1/memories/{written.json()['id']}"
        assert (await client.patch(path, json={"user_id": None})).status_code == 422
        assert (await client.patch(path, json={"pinned": True})).status_code == 200

    async def test_is_what_a_key_does_that_is_bound_to_one(self, client: httpx2.AsyncClient, service: Service) -> None:
        await _set(service, require_user=True)
        principal = Principal(
            tenant=service.tenant, scopes=SCOPES, key_id="k", request_id="request-of-test", bind_user_id="ana"
        )
        client.headers["Authorization"] = f"Bearer {InternalTokens(SECRET).sign(principal)}"
        assert (await client.post("/v1/memories", json={"content": "a"})).status_code == 201
        assert len((await client.get("/v1/memories")).json()["results"]) == 1
        answer = await client.post("/v1/memories/search", json={"query": "a"})
        assert [found["user_id"] for found in answer.json()["results"]] == ["ana"]


class TestChanging:
    async def test_keeps_what_is_not_named_and_null_goes_back_to_the_default(self, service: Service) -> None:
        await _set(service, decay_rate=0.2, require_user=True)
        await _set(service, decay_rate=None, min_relevance=0.3)
        async with service.database.tenant(service.tenant) as connection:
            policy = await policy_of(service.tenant, connection)
        assert (policy.decay_rate, policy.require_user, policy.min_relevance) == (0.01, True, 0.3)

    async def test_a_preset_does_not_stand_beside_weights(self, service: Service) -> None:
        await _set(service, preset="dbgpt")
        with pytest.raises(InvalidRequest) as caught:
            await _set(service, weights={"match": 1.0})
        assert [fault.pointer for fault in caught.value.faults] == ["/preset"]
        await _set(service, weights={"match": 1.0}, preset=None)

"""Forgetting, restoring and feedback, as a client of the service sees them."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.contracts.markers import ForgetRequest
from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.storage import markers
from memplane_core.storage.idempotency import Fingerprint
from memplane_core.storage.markers import Author
from memplane_core.storage.session import Database
from memplane_retrieval.generations import Generations
from memplane_retrieval.markers import BATCH, Markers

pytestmark = pytest.mark.anyio

NOBODY: Final = "01990000-0000-7000-8000-000000000001"
NO_FILTERS: Final[list[Any]] = [{}, {"AND": [{}]}, {"nobody": 1}, None, []]
VOLATILE: Final = ("version", "updated_at", "index_state")


async def write(client: httpx2.AsyncClient, content: str = "zebras are striped", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/memories", json={"content": content, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def act(client: httpx2.AsyncClient, memory_id: str, action: str, **more: Any) -> httpx2.Response:
    return await client.post(f"/v1/memories/{memory_id}/{action}", **more)


async def searched(client: httpx2.AsyncClient, query: str = "zebras", **more: Any) -> list[str]:
    answer = await client.post("/v1/memories/search", json={"query": query, "top_k": 50, **more})
    assert answer.status_code == 200, answer.text
    return [found["id"] for found in answer.json()["results"]]


async def listed(client: httpx2.AsyncClient, **body: Any) -> list[str]:
    answer = await client.post("/v1/memories/list", json=body)
    assert answer.status_code == 200, answer.text
    return [memory["id"] for memory in answer.json()["results"]]


class TestForgetting:
    async def test_hides_at_once_from_every_search_and_list(self, client: httpx2.AsyncClient, service: Service) -> None:
        memory = await write(client)
        await service.tell_index(shown=True)
        kept = await write(client, "zebras eat grass")
        answer = await act(client, memory["id"], "forget")
        assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')
        hidden = answer.json()
        assert (hidden["state"], hidden["version"], hidden["content"]) == ("forgotten", 2, memory["content"])
        left = datetime.fromisoformat(hidden["purge_at"]) - datetime.now(UTC)
        assert timedelta(days=29, hours=23) < left < timedelta(days=30)
        for mode in ("hybrid", "dense", "lexical"):
            assert await searched(client, mode=mode) == [kept["id"]]
        assert await listed(client) == [kept["id"]]
        assert await listed(client, state="forgotten") == [memory["id"]]
        entities = await client.get("/v1/entities", params={"type": "user"})
        assert entities.json()["results"] == []
        assert (await client.get(f"/v1/memories/{memory['id']}")).json()["state"] == "forgotten"

    async def test_grace_is_the_policys(self, client: httpx2.AsyncClient, database: Database, tenant: TenantId) -> None:
        async with database.tenant(tenant) as connection:
            policy = {"maintenance": {"forget_grace_days": 0}}
            await connection.execute("UPDATE tenant SET policy = $2 WHERE id = $1", tenant, policy)
        hidden = (await act(client, (await write(client))["id"], "forget")).json()
        assert datetime.fromisoformat(hidden["purge_at"]) <= datetime.now(UTC)

    async def test_twice_changes_nothing_more(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        first = await act(client, memory["id"], "forget")
        assert (await act(client, memory["id"], "forget")).json() == first.json()

    async def test_asks_for_the_version_it_was_given(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        for action in ("forget", "restore", "feedback"):
            body = {"json": {"value": "helpful"}} if action == "feedback" else {}
            answer = await act(client, memory["id"], action, headers={"If-Match": '"7"'}, **body)
            assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
        assert (await act(client, memory["id"], "forget", headers={"If-Match": '"1"'})).status_code == 200

    async def test_is_done_once_for_each_idempotency_key(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        headers = {"Idempotency-Key": "a key"}
        assert (await act(client, memory["id"], "forget", headers=headers)).json()["state"] == "forgotten"
        await act(client, memory["id"], "restore")
        again = await act(client, memory["id"], "forget", headers=headers)
        assert (again.headers["idempotency-replayed"], again.json()["state"]) == ("true", "active")

    @pytest.mark.parametrize("action", ["forget", "restore", "feedback"])
    async def test_of_nothing_is_404(self, client: httpx2.AsyncClient, action: str) -> None:
        body = {"json": {"value": "helpful"}} if action == "feedback" else {}
        assert (await act(client, NOBODY, action, **body)).status_code == 404

    async def test_what_is_hidden_cannot_be_edited_and_can_be_deleted(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        await act(client, memory["id"], "forget")
        answer = await client.patch(f"/v1/memories/{memory['id']}", json={"content": "other"})
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert (await client.delete(f"/v1/memories/{memory['id']}")).status_code == 204

    async def test_a_hidden_memory_swallows_no_write(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        await act(client, memory["id"], "forget")
        assert (await write(client))["id"] != memory["id"]

    async def test_a_named_one_is_revived_by_writing_it_again_words_and_all(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client, external_id="mine")
        await act(client, memory["id"], "forget")
        again = await client.post("/v1/memories", json={"content": memory["content"], "external_id": "mine"})
        assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, memory["id"], "active")
        assert await searched(client, mode="lexical") == [memory["id"]]

    @pytest.mark.parametrize("text", ["[FORGET]", "[MERGE]", "please [FORGET] id=1 [/FORGET]", "[MERGE] all of it"])
    async def test_text_that_looks_like_a_marker_is_text(self, client: httpx2.AsyncClient, text: str) -> None:
        other = await write(client)
        memory = await write(client, text)
        assert (memory["content"], memory["state"], memory["purge_at"]) == (text, "active", None)
        assert set(await listed(client)) == {other["id"], memory["id"]}
        patched = await client.patch(f"/v1/memories/{other['id']}", json={"content": text, "actor": text})
        assert (patched.json()["content"], patched.json()["state"]) == (text, "active")


class TestRestoring:
    async def test_brings_everything_back(self, client: httpx2.AsyncClient, service: Service) -> None:
        fields = {"user_id": "ana", "scene": ["a"], "metadata": {"n": 1e16}, "priority": 4, "external_id": "x"}
        memory = await write(client, "  zebras \r\n斑马", **fields)
        await service.tell_index(shown=True)
        await act(client, memory["id"], "forget")
        answer = await act(client, memory["id"], "restore")
        restored = answer.json()
        assert (answer.status_code, answer.headers["etag"], restored["state"]) == (200, '"3"', "active")
        del memory["deduplicated"]
        assert {k: v for k, v in restored.items() if k not in VOLATILE} == {
            k: v for k, v in memory.items() if k not in VOLATILE
        }
        for mode in ("hybrid", "dense", "lexical"):
            assert await searched(client, mode=mode) == [memory["id"]]
        assert await listed(client, filters={"scene": ["a"]}) == [memory["id"]]
        past = (await client.get(f"/v1/memories/{memory['id']}/history")).json()["results"]
        assert [entry["event"] for entry in past] == ["restored", "forgotten", "created"]

    async def test_of_what_is_active_changes_nothing(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        assert (await act(client, memory["id"], "restore")).json()["version"] == 1

    async def test_into_a_twin_is_a_conflict_that_names_it(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        await act(client, memory["id"], "forget")
        twin = await write(client)
        answer = await act(client, memory["id"], "restore")
        assert (answer.status_code, answer.json()["code"]) == (409, "duplicate_memory")
        assert answer.json()["id"] == twin["id"]
        assert await listed(client, state="forgotten") == [memory["id"]]

    async def test_of_a_merged_one_says_into_what(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        memory, other = UUID((await write(client))["id"]), UUID((await write(client, "two"))["id"])
        async with database.tenant(tenant) as connection:
            by, into = Author("k", "r"), {memory: other}
            await markers.hide(tenant, connection, [memory], state="merged", purge_at=None, author=by, merged_into=into)
        answer = await act(client, str(memory), "forget")
        assert (answer.status_code, answer.json()["id"]) == (409, str(other))
        assert await listed(client, state="merged") == [str(memory)]


class TestFeedback:
    async def test_counts_opinions_and_leaves_the_memory_alone(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        for value in ("helpful", "helpful"):
            await act(client, memory["id"], "feedback", json={"value": value})
        answer = await act(client, memory["id"], "feedback", json={"value": "not_helpful"})
        assert answer.json() == {"id": memory["id"], "helpful": 2, "not_helpful": 1, "priority": 3}
        now = (await client.get(f"/v1/memories/{memory['id']}")).json()
        assert (now["version"], now["updated_at"]) == (1, memory["updated_at"])

    async def test_is_counted_once_for_each_idempotency_key(self, client: httpx2.AsyncClient) -> None:
        memory = await write(client)
        for _ in range(3):
            said = {"json": {"value": "helpful"}, "headers": {"Idempotency-Key": "k"}}
            assert (await act(client, memory["id"], "feedback", **said)).json()["helpful"] == 1

    @pytest.mark.parametrize("body", [{}, {"value": "great"}, {"value": None}, {"value": "helpful", "why": "x"}])
    async def test_that_is_none_is_refused(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        answer = await act(client, NOBODY, "feedback", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


class TestForgettingMany:
    async def test_hides_all_that_match_and_nothing_else(self, client: httpx2.AsyncClient) -> None:
        mine = [(await write(client, f"zebra {n}", user_id="ana"))["id"] for n in range(3)]
        other = await write(client, "zebra 4", user_id="bob")
        body = {"filters": {"user_id": "ana"}}
        would = await client.post("/v1/memories/forget", json={**body, "dry_run": True})
        assert would.json() == {"dry_run": True, "forgotten": 3, "sample": mine, "complete": True}
        assert len(await listed(client)) == 4
        did = await client.post("/v1/memories/forget", json=body)
        assert did.json() == {"dry_run": False, "forgotten": 3, "sample": mine, "complete": True}
        assert await listed(client) == [other["id"]]
        assert (await client.post("/v1/memories/forget", json=body)).json()["forgotten"] == 0

    @pytest.mark.parametrize("filters", NO_FILTERS)
    async def test_an_empty_or_senseless_filter_is_refused(self, client: httpx2.AsyncClient, filters: Any) -> None:
        memory = await write(client)
        answer = await client.post("/v1/memories/forget", json={"filters": filters})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"][:8]) == (422, "/filters")
        assert (await client.post("/v1/memories/forget", json={})).status_code == 422
        assert await listed(client) == [memory["id"]]

    async def test_goes_on_where_time_ran_out(self, client: httpx2.AsyncClient, service: Service) -> None:
        """A transaction each: what is hidden stays hidden, and the same request hides the rest."""
        memories = [{"content": f"zebra {n}"} for n in range(BATCH + 20)]
        assert (await client.post("/v1/memories/batch", json={"memories": memories})).status_code == 200
        hurried = Markers(service.database, Generations(service.database, ttl_s=60), service.kicker, time_s=0.0)
        principal = Principal(tenant=service.tenant, scopes=SCOPES, key_id="k", request_id="r")
        wanted = ForgetRequest(filters={"priority": 3})
        fingerprint = Fingerprint("key", "route", b"body")
        first = await hurried.forget_matching(principal, wanted, fingerprint=fingerprint)
        assert (first.outcome.forgotten, first.outcome.complete) == (BATCH, False)
        assert len(await listed(client, limit=1000)) == 20
        again = await hurried.forget_matching(principal, wanted, fingerprint=fingerprint)
        assert (again.outcome, again.replayed) == (first.outcome, True)
        rest = await hurried.forget_matching(principal, wanted, fingerprint=None)
        assert (rest.outcome.forgotten, rest.outcome.complete) == (20, True)
        assert await listed(client) == []

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx2
import pytest
from dirty_equals import IsDatetime, IsUUID

from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.text import terms
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import POISON, HashEmbedder
from memplane_core.testing.kicker import RecordingKicker

pytestmark = pytest.mark.anyio

FULL: dict[str, Any] = {
    "content": '订单 ORD-7781 已经退款成功 🎉 "quoted" \\ and\nnew line',
    "external_id": "turn:1/2@a.b",
    "actor": "Caroline",
    "scene": ["support", "退款"],
    "source": "user_feedback",
    "memory_type": "insight",
    "user_id": "u-1/2@x:y.z",
    "agent_id": "agent'\"",
    "session_id": "s') or true --",
    "importance": 0,
    "priority": 5,
    "pinned": True,
    "metadata": {"lang": "zh", "nested": {"n": [1, 2.5, None, True]}, "id": "not the id", "user_id": "mallory"},
    "occurred_at": "2023-05-08T21:56:00.123456+08:00",
    "expires_at": "2099-01-01T00:00:00Z",
}


def _nested(depth: int) -> dict[str, Any]:
    """Metadata of that depth, itself included, around a text that only spells a NUL."""
    value: Any = "\\u0000"
    for _ in range(depth - 1):
        value = [value]
    return {"x": value}


async def _post(client: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    return await client.post("/v1/memories", json=fields)


class TestEveryFieldComesBackAsItWasGiven:
    async def test_all_fields(self, client: httpx2.AsyncClient) -> None:
        written = await client.post("/v1/memories", json=FULL)

        assert written.status_code == 201, written.text
        body = written.json()
        expected = FULL | {
            "id": IsUUID,
            "occurred_at": "2023-05-08T13:56:00.123456Z",
            "expires_at": "2099-01-01T00:00:00Z",
            "valid_from": None,
            "valid_to": None,
            "superseded_by": None,
            "created_at": IsDatetime(iso_string=True),
            "updated_at": body["created_at"],
            "last_accessed_at": body["created_at"],
            "access_count": 0,
            "version": 1,
            "state": "active",
            "merged_into": None,
            "purge_at": None,
            "index_state": "pending",
            "index_error": None,
        }
        assert body == expected | {"deduplicated": False}
        assert written.headers["etag"] == '"1"'
        assert UUID(body["id"]).version == 7
        read = await client.get(f"/v1/memories/{body['id']}")
        assert read.json() == expected
        assert read.headers["etag"] == '"1"'

    async def test_defaults_of_a_bare_memory(self, client: httpx2.AsyncClient) -> None:
        body = (await _post(client, content="bare")).json()

        assert body["importance"] == 0.5
        assert body["priority"] == 3
        assert body["memory_type"] == "experience"
        assert [body[name] for name in ("user_id", "agent_id", "session_id", "actor", "source")] == [None] * 5
        assert (body["scene"], body["metadata"], body["pinned"]) == ([], {}, False)

    async def test_content_of_the_greatest_length_comes_back_to_the_byte(self, client: httpx2.AsyncClient) -> None:
        content = "忆" * 10_922 + "ab"
        assert len(content.encode()) == 32_768

        written = await _post(client, content=content)

        assert written.status_code == 201
        assert (await client.get(f"/v1/memories/{written.json()['id']}")).json()["content"] == content

    async def test_metadata_of_the_greatest_depth_and_numbers_of_any_size(self, client: httpx2.AsyncClient) -> None:
        metadata = _nested(64) | {"big": 10**30, "odd": 2**53 + 1, "huge": 1.5e300, "tiny": 5e-324, "e\u0301": "é"}

        written = await _post(client, content="deep", metadata=metadata)
        changed = await client.patch(f"/v1/memories/{written.json()['id']}", json={"priority": 4})
        [listed] = (await client.get("/v1/memories")).json()["results"]
        found = await client.post("/v1/memories/search", json={"query": "deep"})

        assert written.status_code == 201, written.text
        assert isinstance(changed.json()["metadata"]["huge"], float)
        for memory in (written.json(), changed.json(), listed, found.json()["results"][0]):
            assert memory["metadata"] == metadata

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("2023-05-08T13:56:00", "2023-05-08T13:56:00Z"),
            ("2023-05-08T13:56:00-05:30", "2023-05-08T19:26:00Z"),
            (1_683_554_160, "2023-05-08T13:56:00Z"),
            (0.5, "1970-01-01T00:00:00.500000Z"),
        ],
    )
    async def test_times_are_kept_in_utc_whatever_their_form(
        self, client: httpx2.AsyncClient, given: object, kept: str
    ) -> None:
        assert (await _post(client, content="timed", occurred_at=given)).json()["occurred_at"] == kept


class TestBadInputIsRefusedNamingTheField:
    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"content": ""}, "/content"),
            ({"content": "忆" * 10_923}, "/content"),
            ({"content": "x" * 32_769}, "/content"),
            ({"content": "nul \0"}, "/content"),
            ({"content": "x", "importance": 1.5}, "/importance"),
            ({"content": "x", "importance": "0.5"}, "/importance"),
            ({"content": "x", "priority": 0}, "/priority"),
            ({"content": "x", "priority": 3.5}, "/priority"),
            ({"content": "x", "nonsense": 1}, "/nonsense"),
            ({"content": "x", "occurred_at": "yesterday"}, "/occurred_at"),
            ({"content": "x", "occurred_at": 1e18}, "/occurred_at"),
            ({"content": "x", "scene": ["a"] * 33}, "/scene"),
            ({"content": "x", "scene": ["ok", "y" * 129]}, "/scene/1"),
            ({"content": "x", "user_id": ""}, "/user_id"),
            ({"content": "x", "user_id": "忆" * 86}, "/user_id"),
            ({"content": "x", "metadata": {"a": "x" * 16_400}}, "/metadata"),
            ({"content": "x", "metadata": {"a": ["\0"]}}, "/metadata"),
            ({"content": "x", "metadata": {"a": [{"\0": 1}]}}, "/metadata"),
            ({"content": "x", "metadata": _nested(65)}, "/metadata"),
            ({"content": "x", "metadata": _nested(900)}, "/metadata"),
            ({"content": "x", "metadata": [1]}, "/metadata"),
            ({}, "/content"),
        ],
    )
    async def test_422_with_a_pointer(self, client: httpx2.AsyncClient, body: dict[str, Any], pointer: str) -> None:
        response = await client.post("/v1/memories", json=body)

        assert response.status_code == 422, response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert [fault["pointer"] for fault in response.json()["errors"]] == [pointer]

    @pytest.mark.parametrize(
        ("raw", "status", "pointer"),
        [
            (b'{"content": "x", "importance": NaN}', 422, "/importance"),
            (b'{"content": "x", "metadata": {"a": [1, -Infinity]}}', 422, "/metadata/a/1"),
            (b'{"content": "x\\ud800"}', 422, "/content"),
            (b'{"content": "x", "metadata": {"\\ud800": 1}}', 422, "/metadata/?"),
            (b'{"content": "x"', 400, None),
            (b"", 422, ""),
        ],
    )
    async def test_what_is_no_json(
        self, client: httpx2.AsyncClient, raw: bytes, status: int, pointer: str | None
    ) -> None:
        response = await client.post("/v1/memories", content=raw)

        assert response.status_code == status, response.text
        assert [fault["pointer"] for fault in response.json().get("errors", [])] == (
            [] if pointer is None else [pointer]
        )

    async def test_one_bad_memory_of_a_batch_leaves_nothing_stored(self, client: httpx2.AsyncClient) -> None:
        response = await client.post(
            "/v1/memories/batch", json={"memories": [{"content": "good"}, {"content": "x" * 32_769}]}
        )

        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == "/memories/1/content"
        assert (await client.get("/v1/memories")).json() == {"results": [], "next_cursor": None}


class TestIdempotencyKeys:
    async def test_a_repeat_is_answered_from_the_record(self, client: httpx2.AsyncClient) -> None:
        body: dict[str, Any] = {"content": "once", "on_duplicate": "create"}
        first = await client.post("/v1/memories", json=body, headers={"Idempotency-Key": "k1"})
        again = await client.post("/v1/memories", json=body, headers={"Idempotency-Key": "k1"})

        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json() == first.json()
        assert again.headers["idempotency-replayed"] == "true"
        assert len((await client.get("/v1/memories")).json()["results"]) == 1

    async def test_another_body_is_refused(self, client: httpx2.AsyncClient) -> None:
        await client.post("/v1/memories", json={"content": "a"}, headers={"Idempotency-Key": "k"})
        other = await client.post("/v1/memories", json={"content": "b"}, headers={"Idempotency-Key": "k"})
        route = await client.post(
            "/v1/memories/batch", json={"memories": [{"content": "a"}]}, headers={"Idempotency-Key": "k"}
        )

        assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
        assert (route.status_code, route.json()["code"]) == (422, "idempotency_mismatch")
        assert len((await client.get("/v1/memories")).json()["results"]) == 1

    async def test_twenty_at_once_have_one_effect_and_equal_answers(self, client: httpx2.AsyncClient) -> None:
        body: dict[str, Any] = {"memories": [{"content": f"m{n}", "on_duplicate": "create"} for n in range(3)]}
        answers = await asyncio.gather(
            *(client.post("/v1/memories/batch", json=body, headers={"Idempotency-Key": "k"}) for _ in range(20))
        )

        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert len((await client.get("/v1/memories")).json()["results"]) == 3

    async def test_a_failed_request_leaves_the_key_free(self, client: httpx2.AsyncClient) -> None:
        headers = {"Idempotency-Key": "k"}
        assert (await client.post("/v1/memories", json={"content": ""}, headers=headers)).status_code == 422
        assert (await client.post("/v1/memories", json={"content": "ok"}, headers=headers)).status_code == 201

    async def test_the_record_holds_no_content(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await client.post("/v1/memories", json={"content": "my secret"}, headers={"Idempotency-Key": "k"})

        async with database.tenant(tenant) as connection:
            rows = await connection.fetch("SELECT i::text AS row FROM idempotency i WHERE tenant_id = $1", tenant)
        assert len(rows) == 1
        assert "my secret" not in rows[0]["row"]


class TestWhenTextsCannotBeEmbeddedAtOnce:
    async def test_embedder_away_is_202_and_pending(
        self, client: httpx2.AsyncClient, service: Any, database: Database, tenant: TenantId
    ) -> None:
        embedder: HashEmbedder = service.embedder
        embedder.down = True

        answer = await _post(client, content="stored all the same 退款")

        assert (answer.status_code, answer.json()["index_state"]) == (202, "pending")
        async with database.tenant(tenant) as connection:
            [chunk] = await connection.fetch(
                "SELECT terms, embedding FROM chunk JOIN memory_words USING (tenant_id, memory_id)"
                " WHERE tenant_id = $1",
                tenant,
            )
        assert chunk["embedding"] is None
        assert chunk["terms"].endswith(terms("stored all the same 退款"))

    async def test_a_poison_text_harms_no_other(self, client: httpx2.AsyncClient) -> None:
        answer = await client.post(
            "/v1/memories/batch", json={"memories": [{"content": "fine"}, {"content": f"bad {POISON}"}]}
        )
        assert sorted(item["status"] for item in answer.json()["results"]) == [201, 202]

    @pytest.mark.parametrize("text", ["long " * 100, "长" * 100], ids=["english", "chinese"])
    async def test_more_than_can_be_embedded_in_time_is_stored_and_left_to_the_drain(
        self, client: httpx2.AsyncClient, service: Any, text: str
    ) -> None:
        memories = [{"content": f"{n} {text}"} for n in range(200)]
        answer = await client.post("/v1/memories/batch", json={"memories": memories})

        assert {item["status"] for item in answer.json()["results"]} == {202}
        embedder: HashEmbedder = service.embedder
        assert embedder.calls == 0

    async def test_a_model_that_is_not_served_keeps_writes_and_is_no_fault_of_a_search(self, service: Any) -> None:
        service.embedder = HashEmbedder(models=("another",))
        async with service.running() as client:
            written = await _post(client, content="kept")
            searched = await client.post("/v1/memories/search", json={"query": "kept"})
            by_meaning = await client.post("/v1/memories/search", json={"query": "kept", "mode": "dense"})

            assert (written.status_code, written.json()["index_state"]) == (202, "pending")
            assert ([result["content"] for result in searched.json()["results"]], searched.json()["degraded"]) == (
                ["kept"],
                ["dense"],
            )
            assert (by_meaning.status_code, by_meaning.json()["code"]) == (503, "embedding_unavailable")
            assert (await client.get(f"/v1/memories/{written.json()['id']}")).status_code == 200


class TestWhatAWriteLeavesBehind:
    async def test_history_outbox_usage_scenes_and_a_kick(
        self, client: httpx2.AsyncClient, service: Any, database: Database, tenant: TenantId
    ) -> None:
        memory_id = UUID((await _post(client, content="x", scene=["b", "a", "b"], priority=4)).json()["id"])

        async with database.tenant(tenant) as connection:
            outbox = await connection.fetch("SELECT memory_id, rev, op FROM outbox WHERE tenant_id = $1", tenant)
            scenes = await connection.fetch(
                "SELECT scene FROM memory_scene WHERE tenant_id = $1 ORDER BY scene", tenant
            )
            history = await connection.fetchrow("SELECT * FROM history WHERE tenant_id = $1", tenant)
            usage = await connection.fetchrow("SELECT * FROM memory_usage WHERE tenant_id = $1", tenant)
        assert [(row["memory_id"], row["rev"], row["op"]) for row in outbox] == [(memory_id, 1, "upsert")]
        assert [row["scene"] for row in scenes] == ["a", "b"]
        assert history is not None
        assert (history["event"], history["key_id"], history["version"]) == ("created", "testkey", 1)
        assert usage is not None
        assert (usage["priority"], usage["access_count"]) == (4, 0)
        assert abs((usage["last_accessed_at"] - datetime.now(UTC)).total_seconds()) < 60
        kicker: RecordingKicker = service.kicker
        assert kicker.kicked == [tenant]

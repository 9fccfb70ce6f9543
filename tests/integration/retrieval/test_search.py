import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database, unpack_vector
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.tenants import make_tenant
from memplane_retrieval import nomination

pytestmark = pytest.mark.anyio


async def _write(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories", json=fields)
    assert response.status_code in (201, 202), response.text
    return response.json()


async def _search(client: httpx2.AsyncClient, query: str, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories/search", json={"query": query} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def _contents(answer: dict[str, Any]) -> list[str]:
    return [result["content"] for result in answer["results"]]


class TestAMemoryIsRecalledByTheNextRequest:
    async def test_before_the_collection_exists(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="the cat sleeps on the red sofa")
        await _write(client, content="quarterly revenue grew by nine percent")

        answer = await _search(client, "where does the cat sleep", explain=True)

        assert answer["degraded"] == []
        assert _contents(answer)[0] == "the cat sleeps on the red sofa"
        assert answer["results"][0]["explain"]["origin"] == "scan"

    async def test_while_it_waits_for_the_index(self, client: httpx2.AsyncClient, service: Any) -> None:
        await _write(client, content="old memory about gardens")
        await service.tell_index(shown=True)
        await _write(client, content="fresh memory about volcanoes")

        # The generation was cached as absent by the first write; the cache lasts a few seconds, the answer is right.
        async with service.running() as second:
            answer = await _search(second, "volcanoes", explain=True, top_k=2)

        assert _contents(answer)[0] == "fresh memory about volcanoes"
        assert [result["explain"]["origin"] for result in answer["results"]] == ["fresh", "index"]

    async def test_while_the_index_has_it_but_does_not_show_it_yet(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _write(client, content="just indexed")
        index: MemoryIndex = service.index
        index.visible_after = 1000.0
        await service.tell_index(shown=False)

        async with service.running() as second:
            answer = await _search(second, "just indexed", explain=True, top_k=1)

        assert [result["explain"]["origin"] for result in answer["results"]] == ["fresh"]

    @pytest.mark.parametrize("small", [True, False])
    async def test_more_that_waits_than_can_be_looked_at_is_left_to_postgres_or_said(
        self,
        client: httpx2.AsyncClient,
        service: Any,
        database: Database,
        tenant: TenantId,
        monkeypatch: pytest.MonkeyPatch,
        *,
        small: bool,
    ) -> None:
        for n in range(3):
            await _write(client, content=f"note {n}", user_id="a")
        await service.tell_index(shown=True)
        await _write(client, content="the note", user_id="a")
        async with database.tenant(tenant) as connection:  # others' writes, all newer
            await connection.execute(
                "INSERT INTO outbox (tenant_id, generation, memory_id, rev, op)"
                " SELECT $1, 1, gen_random_uuid(), 1, 'upsert' FROM generate_series(1, 20000)",
                tenant,
            )
        if not small:
            monkeypatch.setattr(nomination, "SCAN_LIMIT", 2)

        async with service.running() as second:
            answer = await _search(second, "note", top_k=3, filters={"user_id": "a"})

        assert (len(answer["results"]), answer["degraded"]) == (3, [] if small else ["fresh"])


class TestStaleIndexRowsNeverSurface:
    async def test_an_edited_memory_answers_with_its_new_text_and_score_alone(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        memory = await _write(client, content="ann lives in paris")
        await service.tell_index(shown=True)
        await client.patch(f"/v1/memories/{memory['id']}", json={"content": "bob moved to lyon"})

        async with service.running() as second:
            [result] = (await _search(second, "ann lives in paris", explain=True, top_k=1))["results"]

        assert result["content"] == "bob moved to lyon"
        assert result["explain"]["cosine"] < 0.9

    async def test_a_deleted_memory_and_a_row_of_nobody_are_dropped(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        memory = await _write(client, content="to be deleted")
        await _write(client, content="to stay")
        await service.tell_index(shown=True)
        await client.delete(f"/v1/memories/{memory['id']}")

        async with service.running() as second:
            answer = await _search(second, "to be deleted")

        assert _contents(answer) == ["to stay"]

    async def test_a_memory_edited_while_it_is_being_found_is_still_found_as_it_is_now(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        memory = await _write(client, content="ann lives in paris", occurred_at="2023-05-08T12:00:00Z")
        await service.tell_index(shown=True)
        index: MemoryIndex = service.index
        searched = index.search

        async def edit_then_search(*args: Any, **kwargs: Any) -> Any:
            hits = await searched(*args, **kwargs)
            await client.patch(f"/v1/memories/{memory['id']}", json={"content": "ann lives in lyon"})
            return hits

        index.search = edit_then_search
        async with service.running() as second:
            [result] = (await _search(second, "ann lives in lyon", explain=True, top_k=1))["results"]

        assert result["content"] == "ann lives in lyon"
        assert result["explain"]["cosine"] > 0.6

    async def test_a_memory_deleted_while_the_index_is_asked_leaves_its_place_to_the_next(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        first = await _write(client, content="ann lives in lyon")
        await _write(client, content="ann lived in paris")
        await service.tell_index(shown=True)
        index: MemoryIndex = service.index
        searched = index.search

        async def delete_then_search(*args: Any, **kwargs: Any) -> Any:
            hits = await searched(*args, **kwargs)
            await client.delete(f"/v1/memories/{first['id']}")
            return hits

        index.search = delete_then_search
        async with service.running() as second:
            answer = await _search(second, "ann lives in lyon", top_k=1)

        assert _contents(answer) == ["ann lived in paris"]


class TestTopK:
    async def test_expired_rows_do_not_starve_it(
        self, client: httpx2.AsyncClient, service: Any, database: Database, tenant: TenantId
    ) -> None:
        soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        await client.post(
            "/v1/memories/batch",
            json={"memories": [{"content": f"blue whale {n}", "expires_at": soon} for n in range(300)]},
        )
        await client.post("/v1/memories/batch", json={"memories": [{"content": "whale a"}, {"content": "whale b"}]})
        await service.tell_index(shown=True)
        async with database.tenant(tenant) as connection:  # they expire, and the index does not know
            await connection.execute(
                "UPDATE memory SET expires_at = now() - interval '1 h' WHERE expires_at IS NOT NULL AND tenant_id = $1",
                tenant,
            )

        async with service.running() as second:
            answer = await _search(second, "blue whale", top_k=2)

        assert sorted(_contents(answer)) == ["whale a", "whale b"]
        assert answer["degraded"] == []

    async def test_an_index_that_gives_fewer_than_match_is_made_up_for(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        for n in range(20):
            await _write(client, content=f"note {n}", user_id="a")
        await service.tell_index(shown=True)
        index: MemoryIndex = service.index
        searched = index.search

        async def search_badly(*args: Any, **kwargs: Any) -> Any:
            return (await searched(*args, **kwargs))[:3]

        index.search = search_badly
        async with service.running() as second:
            answer = await _search(second, "note", top_k=10, filters={"user_id": "a"})

        assert (len(answer["results"]), answer["degraded"]) == (10, [])

    async def test_fewer_matches_than_asked_for_are_all_returned(self, client: httpx2.AsyncClient) -> None:
        for n in range(3):
            await _write(client, content=f"note {n}", user_id="a")
        await _write(client, content="note 4", user_id="b")

        answer = await _search(client, "note", top_k=50, filters={"user_id": "a"})

        assert sorted(_contents(answer)) == ["note 0", "note 1", "note 2"]


class TestLongMemories:
    async def test_the_last_sentence_of_32_kib_is_found_and_counted_once(self, client: httpx2.AsyncClient) -> None:
        ending = "the password of the vault is swordfish " * 50
        content = ("lorem ipsum dolor sit amet " * 1210 + ending)[-32_768:]
        await _write(client, content=content)
        for n in range(5):
            await _write(client, content=f"unrelated {n}")

        answer = await _search(client, "password of the vault swordfish")

        assert answer["results"][0]["content"] == content
        assert len({result["id"] for result in answer["results"]}) == len(answer["results"])


class TestRanking:
    async def test_parts_add_up_to_the_score(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="alpha beta", importance=1, priority=5)
        await _write(client, content="alpha gamma", importance=0, priority=1)
        now = time.time() + 3600

        answer = await _search(client, "alpha beta", explain=True, now=now)

        for result in answer["results"]:
            parts = result["explain"]
            last_access = datetime.fromisoformat(result["last_accessed_at"]).timestamp()
            assert parts["recency"] == pytest.approx(0.99 ** ((now - last_access) / 3600), abs=1e-9)
            score = (
                0.75 * parts["match"] + 0.1 * parts["recency"] + 0.1 * parts["importance"] + 0.05 * parts["priority"]
            )
            assert result["score"] == pytest.approx(score, abs=1e-9)
            assert parts["priority"] == (result["priority"] - 1) / 4
        assert answer["results"][0]["explain"]["match"] == 1.0

    async def test_weights_of_the_request_are_normalised(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="near match words", importance=0)
        await _write(client, content="other thing", importance=1)
        weights = {"match": 0, "recency": 0, "importance": 4, "priority": 0}

        answer = await _search(client, "near match words", weights=weights)

        assert [(result["content"], result["score"]) for result in answer["results"]] == [
            ("other thing", 1.0),
            ("near match words", 0.0),
        ]

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"query": ""}, "/query"),
            ({"query": "x", "top_k": 0}, "/top_k"),
            ({"query": "x", "filters": {"nope": 1}}, "/filters/nope"),
            ({"query": "x", "filters": {"user_id": "a\0"}}, "/filters/user_id"),
            ({"query": "x" * 8193}, "/query"),
            ({"query": "x", "weights": {"match": 0, "recency": 0, "importance": 0, "priority": 0}}, "/weights"),
            ({"query": "x", "weights": {"match": -1}}, "/weights/match"),
            ({"query": "x", "now": 1e20}, "/now"),
        ],
    )
    async def test_bad_searches_name_the_field(
        self, client: httpx2.AsyncClient, body: dict[str, Any], pointer: str
    ) -> None:
        response = await client.post("/v1/memories/search", json=body)
        assert response.status_code == 422, response.text
        assert response.json()["errors"][0]["pointer"] == pointer


class TestWhenPartsAreAway:
    async def test_index_down_is_answered_by_postgres_and_said(self, client: httpx2.AsyncClient, service: Any) -> None:
        await _write(client, content="still here")
        await service.tell_index(shown=True)
        index: MemoryIndex = service.index
        index.down = True

        async with service.running() as second:
            answer = await _search(second, "still here", explain=True)

        assert answer["degraded"] == ["index"]
        assert [result["explain"]["origin"] for result in answer["results"]] == ["scan"]

    @pytest.mark.parametrize("body", [{"query": "x", "mode": "dense"}, {"query": "?!"}])
    async def test_embedder_down_is_503_with_retry_after_where_words_cannot_answer(
        self, client: httpx2.AsyncClient, service: Any, body: dict[str, Any]
    ) -> None:
        await _write(client, content="x")
        embedder: HashEmbedder = service.embedder
        embedder.down = True

        response = await client.post("/v1/memories/search", json=body)

        assert (response.status_code, response.json()["code"]) == (503, "embedding_unavailable")
        assert int(response.headers["retry-after"]) > 0


class TestTenantsNeverMeet:
    async def test_no_row_crosses_on_any_route(
        self, client: httpx2.AsyncClient, service: Any, database: Database
    ) -> None:
        mine = await _write(client, content="the same text", user_id="u", external_id="doc")
        other = service.headers(await make_tenant(database))
        theirs = await client.post(
            "/v1/memories", json={"content": "the same text", "user_id": "u", "external_id": "doc"}, headers=other
        )

        assert theirs.status_code == 201
        assert theirs.json()["id"] != mine["id"]
        path = f"/v1/memories/{mine['id']}"
        assert (await client.get(path, headers=other)).status_code == 404
        assert (await client.patch(path, json={"priority": 1}, headers=other)).status_code == 404
        assert (await client.delete(path, headers=other)).status_code == 404
        listed = (await client.get("/v1/memories", headers=other)).json()["results"]
        assert [memory["id"] for memory in listed] == [theirs.json()["id"]]
        found = await client.post("/v1/memories/search", json={"query": "the same text"}, headers=other)
        assert [result["id"] for result in found.json()["results"]] == [theirs.json()["id"]]
        assert (await client.get(path)).json()["version"] == 1

    async def test_a_scope_that_is_missing_is_403_and_no_token_401(
        self, client: httpx2.AsyncClient, service: Any, tenant: TenantId
    ) -> None:
        reader = service.headers(tenant, scopes=frozenset({"memories:read"}))
        assert (await client.post("/v1/memories", json={"content": "x"}, headers=reader)).status_code == 403
        assert (await client.get("/v1/memories", headers=reader)).status_code == 200
        for bad in ("", "Bearer", "Bearer nonsense"):
            assert (await client.get("/v1/memories", headers={"Authorization": bad})).status_code == 401


class TestRowLevelSecurity:
    async def test_the_runtime_role_sees_nothing_without_a_tenant_and_cannot_read_anothers_rows(
        self, client: httpx2.AsyncClient, database: Database
    ) -> None:
        memory = await _write(client, content="mine", scene=["s"])
        tables = ("tenant", "generation", "memory", "memory_usage", "memory_scene", "chunk", "history", "outbox")
        async with database.system() as connection:
            for table in tables:
                assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0, table
        other = await make_tenant(database)
        async with database.tenant(other) as connection:
            for table in tables[2:]:
                assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0, table
            changed = await connection.execute("UPDATE memory SET content = 'x' WHERE id = $1", UUID(memory["id"]))
            assert changed == "UPDATE 0"
        assert (await client.get(f"/v1/memories/{memory['id']}")).json()["content"] == "mine"

    async def test_stored_vectors_are_what_was_embedded(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await _write(client, content="x")
        async with database.tenant(tenant) as connection:
            raw = await connection.fetchval("SELECT embedding FROM chunk WHERE tenant_id = $1", tenant)
        assert raw.shape == (64,)
        assert float((raw**2).sum()) == pytest.approx(1.0, abs=1e-5)
        assert unpack_vector(b"\x00\x01\x00\x00\x3f\x80\x00\x00").tolist() == [1.0]

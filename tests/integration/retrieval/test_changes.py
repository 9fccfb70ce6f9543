import asyncio
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.faults import Gate

pytestmark = pytest.mark.anyio


async def _write(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories", json=fields)
    assert response.status_code == 201, response.text
    return response.json()


async def _outbox(database: Database, tenant: TenantId) -> set[tuple[int, str, int]]:
    async with database.tenant(tenant) as connection:
        rows = await connection.fetch("SELECT rev, op, chunks FROM outbox WHERE tenant_id = $1", tenant)
    return {(row["rev"], row["op"], row["chunks"]) for row in rows}


class TestPatching:
    async def test_what_is_not_named_stays(self, client: httpx2.AsyncClient) -> None:
        before = await _write(client, content="a", metadata={"k": 1}, scene=["s"], actor="ann", user_id="u", priority=2)

        response = await client.patch(f"/v1/memories/{before['id']}", json={"importance": 0.9})

        assert response.status_code == 200
        after = response.json()
        changed = {name for name in after if after[name] != before[name]}
        assert changed == {"importance", "version", "updated_at"}
        assert (after["importance"], after["version"], response.headers["etag"]) == (0.9, 2, '"2"')

    async def test_null_clears_and_scene_is_replaced(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        memory = await _write(client, content="a", actor="ann", scene=["x", "y"], expires_at="2099-01-01T00:00:00Z")

        patch = {"actor": None, "expires_at": None, "scene": ["y", "z"]}
        after = (await client.patch(f"/v1/memories/{memory['id']}", json=patch)).json()

        assert (after["actor"], after["expires_at"], after["scene"]) == (None, None, ["y", "z"])
        async with database.tenant(tenant) as connection:
            rows = await connection.fetch("SELECT scene FROM memory_scene WHERE tenant_id = $1 ORDER BY 1", tenant)
        assert [row["scene"] for row in rows] == ["y", "z"]

    async def test_a_change_that_the_index_holds_makes_a_new_revision_and_drops_the_old(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId, service: Any
    ) -> None:
        memory = await _write(client, content="a")
        embedder: HashEmbedder = service.embedder
        embedded = embedder.calls

        await client.patch(f"/v1/memories/{memory['id']}", json={"user_id": "someone"})

        assert await _outbox(database, tenant) == {(1, "delete", 1), (2, "upsert", 0)}
        assert embedder.calls == embedded, "the text is the same"

    async def test_a_new_text_is_embedded_and_a_new_importance_does_not_touch_the_index(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId, service: Any
    ) -> None:
        memory = await _write(client, content="a")
        embedder: HashEmbedder = service.embedder
        embedded = embedder.calls

        await client.patch(f"/v1/memories/{memory['id']}", json={"importance": 0.1, "priority": 1, "scene": ["q"]})
        assert await _outbox(database, tenant) == {(1, "upsert", 0)}
        await client.patch(f"/v1/memories/{memory['id']}", json={"content": "entirely different"})

        assert embedder.calls == embedded + 1
        assert await _outbox(database, tenant) == {(1, "delete", 1), (2, "upsert", 0)}
        found = (await client.post("/v1/memories/search", json={"query": "entirely different"})).json()
        assert [result["content"] for result in found["results"]] == ["entirely different"]

    async def test_if_match_of_an_old_version_is_refused(self, client: httpx2.AsyncClient) -> None:
        memory = await _write(client, content="a")
        path = f"/v1/memories/{memory['id']}"

        first = await client.patch(path, json={"priority": 4}, headers={"If-Match": '"1"'})
        second = await client.patch(path, json={"priority": 5}, headers={"If-Match": '"1"'})
        nonsense = await client.patch(path, json={"priority": 5}, headers={"If-Match": "one"})

        assert first.status_code == 200
        assert (second.status_code, second.json()["code"]) == (412, "precondition_failed")
        assert (nonsense.status_code, nonsense.json()["errors"][0]["pointer"]) == (422, "If-Match")
        assert (await client.get(path)).json()["priority"] == 4

    async def test_patching_into_a_twin_names_it(self, client: httpx2.AsyncClient) -> None:
        one = await _write(client, content="one")
        two = await _write(client, content="two")

        response = await client.patch(f"/v1/memories/{two['id']}", json={"content": "one"})

        assert (response.status_code, response.json()["code"]) == (409, "duplicate_memory")
        assert response.json()["id"] == one["id"]
        assert (await client.get(f"/v1/memories/{two['id']}")).json()["content"] == "two"

    async def test_two_that_are_each_to_become_the_other_are_both_refused(self, client: httpx2.AsyncClient) -> None:
        ids = [(await _write(client, content=content))["id"] for content in ("one", "two")]

        answers = await asyncio.gather(
            *(client.patch(f"/v1/memories/{ids[n % 2]}", json={"content": ("two", "one")[n % 2]}) for n in range(8))
        )

        assert [(answer.status_code, answer.json()["id"]) for answer in answers] == [
            (409, ids[1 - n % 2]) for n in range(8)
        ]

    async def test_of_many_that_become_the_same_at_once_one_does_and_the_others_name_it(
        self, client: httpx2.AsyncClient
    ) -> None:
        ids = [(await _write(client, content=f"note {n}"))["id"] for n in range(6)]

        answers = await asyncio.gather(*(client.patch(f"/v1/memories/{i}", json={"content": "same"}) for i in ids))

        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 5
        [winner] = [answer.json()["id"] for answer in answers if answer.status_code == 200]
        assert {answer.json()["id"] for answer in answers} == {winner}

    async def test_moving_to_a_user_who_has_the_name_already_names_the_holder(self, client: httpx2.AsyncClient) -> None:
        holder = await _write(client, content="a", external_id="doc", user_id="ann")
        other = await _write(client, content="b", external_id="doc", user_id="bob")

        response = await client.patch(f"/v1/memories/{other['id']}", json={"user_id": "ann"})

        assert (response.status_code, response.json()["code"]) == (409, "duplicate_memory")
        assert response.json()["id"] == holder["id"]

    async def test_true_is_not_one(self, client: httpx2.AsyncClient) -> None:
        memory = await _write(client, content="a", metadata={"x": 1})

        after = (await client.patch(f"/v1/memories/{memory['id']}", json={"metadata": {"x": True}})).json()

        assert after["metadata"]["x"] is True
        assert after["version"] == 2

    async def test_an_expiry_in_the_past_is_kept_answered_and_ends_the_memory(self, client: httpx2.AsyncClient) -> None:
        memory = await _write(client, content="a")
        path = f"/v1/memories/{memory['id']}"

        response = await client.patch(path, json={"expires_at": "2020-01-01T00:00:00Z"})

        assert (response.status_code, response.json()["version"], response.headers["etag"]) == (200, 2, '"2"')
        assert (await client.get(path)).status_code == 404

    async def test_concurrent_patches_of_different_fields_all_last(self, client: httpx2.AsyncClient) -> None:
        memory = await _write(client, content="a")
        patches: list[dict[str, Any]] = [
            {"priority": 5},
            {"importance": 0.25},
            {"actor": "ann"},
            {"content": "b"},
            {"metadata": {"x": 1}},
            {"scene": ["s"]},
        ]

        await asyncio.gather(*(client.patch(f"/v1/memories/{memory['id']}", json=patch) for patch in patches))

        after = (await client.get(f"/v1/memories/{memory['id']}")).json()
        assert after["version"] == 7
        assert {name: after[name] for patch in patches for name in patch} == {
            name: value for patch in patches for name, value in patch.items()
        }

    async def test_a_text_that_takes_long_to_embed_is_not_embedded_again_for_every_change_meanwhile(
        self, service: Any
    ) -> None:
        gate = Gate()

        class SlowEmbedder(HashEmbedder):
            async def embed_passages(self, *args: Any, **kwargs: Any) -> Any:
                await gate.pass_through()
                return await super().embed_passages(*args, **kwargs)

        embedder = service.embedder = SlowEmbedder()
        async with service.running() as client:
            ids = [(await _write(client, content="a", external_id=name))["id"] for name in ("one", "two")]
            for slow in (
                {"url": f"/v1/memories/{ids[0]}", "method": "PATCH", "json": {"content": "b"}},
                {"url": "/v1/memories", "method": "POST", "json": {"content": "b", "external_id": "two"}},
            ):
                gate.close()
                running = asyncio.create_task(client.request(**slow))
                await gate.reached()
                for path in ids:
                    assert (await client.patch(f"/v1/memories/{path}", json={"scene": [slow["method"]]})).is_success
                gate.open()

                after = (await running).json()

                assert (after["content"], after["scene"]) == ("b", [slow["method"]])
        assert embedder.calls == 4

    async def test_a_patch_that_waited_for_another_does_not_undo_its_priority(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        memory = await _write(client, content="a", priority=2)
        async with database.tenant(tenant) as first:
            await first.execute(
                "UPDATE memory SET version = version + 1 WHERE tenant_id = $1 AND id = $2", tenant, UUID(memory["id"])
            )
            await first.execute("UPDATE memory_usage SET priority = 5 WHERE tenant_id = $1", tenant)
            second = asyncio.create_task(client.patch(f"/v1/memories/{memory['id']}", json={"importance": 0.9}))
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            deadline = asyncio.get_running_loop().time() + 10
            while await first.fetchval(waits) == 0:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)

        assert (await second).status_code == 200
        after = (await client.get(f"/v1/memories/{memory['id']}")).json()
        assert (after["priority"], after["importance"], after["version"]) == (5, 0.9, 3)

    @pytest.mark.parametrize("body", [{}, {"content": ""}, {"id": str(uuid4())}, {"external_id": "x"}])
    async def test_bad_patches(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        memory = await _write(client, content="a")
        assert (await client.patch(f"/v1/memories/{memory['id']}", json=body)).status_code == 422


class TestDeleting:
    async def test_204_then_404_and_nothing_stays(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        memory = await _write(client, content="secret words", scene=["s"])
        path = f"/v1/memories/{memory['id']}"

        assert (await client.delete(path)).status_code == 204

        for answer in (
            await client.get(path),
            await client.delete(path),
            await client.patch(path, json={"priority": 1}),
        ):
            assert answer.status_code == 404
        assert (await client.post("/v1/memories/search", json={"query": "secret words"})).json()["results"] == []
        assert await _outbox(database, tenant) == {(1, "delete", 1)}
        async with database.tenant(tenant) as connection:
            for table in ("memory", "memory_usage", "memory_scene", "chunk", "history"):
                assert await connection.fetchval(f"SELECT count(*) FROM {table} WHERE tenant_id = $1", tenant) == 0

    async def test_if_match(self, client: httpx2.AsyncClient) -> None:
        memory = await _write(client, content="a")
        path = f"/v1/memories/{memory['id']}"

        assert (await client.delete(path, headers={"If-Match": '"7"'})).status_code == 412
        assert (await client.delete(path, headers={"If-Match": '"1"'})).status_code == 204


class TestListing:
    async def test_every_memory_once_newest_first_while_others_write(self, client: httpx2.AsyncClient) -> None:
        batch = {"memories": [{"content": f"m{n}"} for n in range(250)]}
        written = [item["id"] for item in (await client.post("/v1/memories/batch", json=batch)).json()["results"]]

        seen: list[str] = []
        cursor: str | None = None
        while True:
            query: dict[str, str | int] = {"limit": 60} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/v1/memories", params=query)).json()
            seen += [memory["id"] for memory in page["results"]]
            await _write(client, content=f"meanwhile {len(seen)}")
            cursor = page["next_cursor"]
            if cursor is None:
                break

        assert len(seen) == 250
        assert set(seen) == set(written)
        assert seen == sorted(seen, reverse=True)

    async def test_filters_by_entity_and_type(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="1", user_id="a", session_id="s")
        await _write(client, content="2", user_id="a", memory_type="insight")
        await _write(client, content="3", user_id="b", agent_id="g")

        async def contents(**where: str) -> list[str]:
            page = (await client.get("/v1/memories", params=where)).json()
            return [memory["content"] for memory in page["results"]]

        assert await contents(user_id="a") == ["2", "1"]
        assert await contents(user_id="a", session_id="s") == ["1"]
        assert await contents(memory_type="insight") == ["2"]
        assert await contents(agent_id="g") == ["3"]
        assert await contents(user_id="a' OR 'a'='a") == []

    async def test_expired_memories_are_not_listed(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="gone", expires_at="2020-01-01T00:00:00Z")
        assert (await client.get("/v1/memories")).json()["results"] == []

    @pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"cursor": "???"}])
    async def test_bad_paging_is_refused_naming_the_parameter(
        self, client: httpx2.AsyncClient, query: dict[str, str]
    ) -> None:
        response = await client.get("/v1/memories", params=query)
        assert response.status_code == 422, response.text
        assert response.json()["errors"][0]["pointer"] == next(iter(query))


class TestHistory:
    async def test_each_version_is_kept_with_what_it_replaced(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        memory = await _write(client, content="old", priority=2)
        await client.patch(f"/v1/memories/{memory['id']}", json={"content": "new", "priority": 4})

        async with database.tenant(tenant) as connection:
            rows = await connection.fetch(
                "SELECT version, event, changes FROM history WHERE tenant_id = $1 AND memory_id = $2 ORDER BY version",
                tenant,
                UUID(memory["id"]),
            )
        assert [(row["version"], row["event"], row["changes"]) for row in rows] == [
            (1, "created", {}),
            (2, "updated", {"content": "old", "priority": 2}),
        ]

"""History of memories, and whom memories are about."""

from collections import Counter
from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import SECRET, Service

from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.storage.session import Database
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio


async def _write(client: httpx2.AsyncClient, content: str, **fields: Any) -> str:
    answer = await client.post("/v1/memories", json={"content": content, **fields})
    assert answer.status_code == 201, answer.text
    return f"/v1/memories/{answer.json()['id']}"


def _as(service: Service, **bind: str) -> dict[str, str]:
    principal = Principal(
        tenant=service.tenant, scopes=SCOPES, key_id="bound", request_id="r", source="198.51.100.7", **bind
    )
    return {"Authorization": f"Bearer {InternalTokens(SECRET).sign(principal)}"}


async def _pages(
    client: httpx2.AsyncClient, path: str, *, limit: int, headers: dict[str, str] | None = None, **query: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        answer = await client.get(path, params={**query, "limit": limit}, headers=headers)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["results"]) <= limit
        found += page["results"]
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]


class TestHistory:
    async def test_who_changed_what_and_when(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client, "first", importance=0.2)
        await client.patch(path, json={"content": "second"})
        await client.patch(path, json={"content": "second"})  # changes nothing
        last = await client.patch(path, json={"importance": 0.9, "metadata": {"a": 1}})

        answer = await client.get(f"{path}/history")
        assert answer.json()["next_cursor"] is None
        entries = answer.json()["results"]
        assert [(entry["version"], entry["event"], entry["changes"]) for entry in entries] == [
            (3, "updated", {"importance": 0.2, "metadata": {}}),
            (2, "updated", {"content": "first"}),
            (1, "created", {}),
        ]
        assert {(entry["key_id"], entry["request_id"]) for entry in entries} == {("testkey", "request-of-test")}
        assert sorted(entries, key=lambda entry: entry["at"], reverse=True) == entries
        assert last.json()["version"] == 3
        assert await _pages(client, f"{path}/history", limit=1) == entries

    async def test_there_is_none_of_a_memory_that_is_not_there(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client, "gone soon")
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(f"{path}/history")).status_code == 404

    async def test_of_another_tenant_there_is_none(self, service: Service, database: Database) -> None:
        other = await make_tenant(database)
        async with service.running() as client:
            path = await _write(client, "mine")
            assert (await client.get(f"{path}/history", headers=service.headers(other))).status_code == 404

    async def test_a_bound_key_hears_nothing_of_others(self, service: Service) -> None:
        async with service.running() as client:
            path = await _write(client, "secret of bob", user_id="bob")
            ana = _as(service, bind_user_id="ana")
            assert (await client.get(f"{path}/history", headers=ana)).status_code == 404
            await client.patch(path, json={"content": "another secret of bob"})
            await client.patch(path, json={"content": "hers now", "user_id": "ana"})
            await client.patch(path, json={"content": "still hers"})

            answer = await client.get(f"{path}/history", headers=ana)
            assert [(entry["version"], entry["changes"]) for entry in answer.json()["results"]] == [
                (4, {"content": "hers now"})
            ]
            assert "bob" not in answer.text
            assert len((await client.get(f"{path}/history")).json()["results"]) == 4
            assert (await client.get(f"{path}/history", headers=_as(service, bind_user_id="bob"))).status_code == 404

    @pytest.mark.parametrize("cursor", ["x", "-1", "99999999999", "1.5", "²"])
    async def test_a_cursor_that_is_none_is_refused(self, client: httpx2.AsyncClient, cursor: str) -> None:
        path = await _write(client, "first")
        answer = await client.get(f"{path}/history", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "cursor")


class TestDeletionsInTheAudit:
    async def test_a_deletion_is_told_and_nothing_else_is(
        self, service: Service, database: Database, tenant: TenantId
    ) -> None:
        async with service.running() as client:
            path = await _write(client, "my secret", user_id="ana")
            await client.patch(path, json={"pinned": True})
            await client.post("/v1/memories/search", json={"query": "secret"})
            headers = {**_as(service, bind_user_id="ana"), "Idempotency-Key": "k"}
            assert [(await client.delete(path, headers=headers)).status_code for _ in range(2)] == [204, 204]
        async with database.tenant(tenant) as connection:
            [row] = await connection.fetch("SELECT *, audit::text AS whole FROM audit WHERE tenant_id = $1", tenant)
        assert (row["action"], row["actor"], row["result"]) == ("deleteMemory", "bound", "done")
        assert (row["target"], row["source"]) == (path.rpartition("/")[2], "198.51.100.7")
        assert "secret" not in row["whole"]


class TestEntities:
    async def test_counts_are_exact_and_pages_complete(self, client: httpx2.AsyncClient) -> None:
        users = [None, "ana", "bob", "ana", "Zoë", "退款", "bob", "ana", "o'hara"]
        for n, user in enumerate(users):
            await _write(client, f"note {n}", user_id=user, agent_id="a", session_id=f"s{n % 4}")
        gone = await _write(client, "deleted", user_id="nobody")
        await client.delete(gone)
        await _write(client, "expired", user_id="nobody", expires_at="2020-01-01T00:00:00Z")

        for type_, column in (("user", users), ("agent", ["a"] * 9), ("session", [f"s{n % 4}" for n in range(9)])):
            found = await _pages(client, "/v1/entities", limit=2, type=type_)
            counted = {entity["id"]: entity["memories"] for entity in found}
            wanted = Counter(value for value in column if value is not None)
            if type_ == "user":
                assert "nobody" not in counted
            assert counted == wanted
            assert len(found) == len(wanted)
            assert found == (await client.get("/v1/entities", params={"type": type_})).json()["results"]
            assert {entity["type"] for entity in found} == {type_}

    async def test_the_last_activity_is_the_last_write_or_change(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client, "one", user_id="ana")
        await _write(client, "two", user_id="ana")
        changed = (await client.patch(path, json={"pinned": True})).json()["updated_at"]
        [ana] = (await client.get("/v1/entities", params={"type": "user"})).json()["results"]
        assert ana == {"type": "user", "id": "ana", "memories": 2, "last_activity_at": changed}

    async def test_a_bound_key_counts_its_own_memories_alone(self, service: Service) -> None:
        async with service.running() as client:
            for n, (user, session) in enumerate((("ana", "s1"), ("ana", "s2"), ("bob", "s1"), ("bob", "s3"))):
                await _write(client, f"note {n}", user_id=user, session_id=session, agent_id="x")
            headers = _as(service, bind_user_id="ana")
            seen = {
                type_: {
                    entity["id"]: entity["memories"]
                    for entity in await _pages(client, "/v1/entities", limit=10, headers=headers, type=type_)
                }
                for type_ in ("user", "session", "agent")
            }
            assert seen == {"user": {"ana": 2}, "session": {"s1": 1, "s2": 1}, "agent": {"x": 2}}

    async def test_another_tenant_has_others(self, service: Service, database: Database) -> None:
        other = await make_tenant(database)
        async with service.running() as client:
            await _write(client, "mine", user_id="ana")
            answer = await client.get("/v1/entities", params={"type": "user"}, headers=service.headers(other))
            assert answer.json() == {"results": [], "next_cursor": None}

    @pytest.mark.parametrize(
        ("query", "pointer"),
        [
            ({"type": "user", "cursor": "x"}, "cursor"),
            ({"type": "user", "cursor": "c2Vzc2lvbjphbmE="}, "cursor"),  # of sessions
            ({"type": "user", "cursor": "dXNlcjoA"}, "cursor"),  # NUL
        ],
    )
    async def test_what_cannot_be_read_is_named(
        self, client: httpx2.AsyncClient, query: dict[str, str], pointer: str
    ) -> None:
        answer = await client.get("/v1/entities", params=query)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)

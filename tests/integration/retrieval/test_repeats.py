"""Changes and deletions that carry an Idempotency-Key and are sent again."""

import asyncio
from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import SECRET, Service

from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio

KEY = {"Idempotency-Key": "k"}


async def _write(client: httpx2.AsyncClient, **fields: Any) -> str:
    answer = await client.post("/v1/memories", json={"content": "the first text", **fields})
    assert answer.status_code == 201, answer.text
    return f"/v1/memories/{answer.json()['id']}"


async def _version(client: httpx2.AsyncClient, path: str) -> int:
    return (await client.get(path)).raise_for_status().json()["version"]


class TestPatches:
    async def test_a_repeat_changes_nothing_and_gives_the_memory_as_it_is_now(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client)
        first = await client.patch(path, json={"content": "the second text"}, headers=KEY)
        later = await client.patch(path, json={"content": "the third text"})
        again = await client.patch(path, json={"content": "the second text"}, headers=KEY)

        assert (first.status_code, later.status_code, again.status_code) == (200, 200, 200)
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        assert (again.json()["content"], again.json()["version"]) == ("the third text", 3)
        assert again.headers["etag"] == '"3"'

    async def test_a_repeat_is_not_held_against_its_own_if_match(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client)
        headers = {**KEY, "If-Match": '"1"'}
        for _ in range(2):
            answer = await client.patch(path, json={"importance": 0.9}, headers=headers)
            assert (answer.status_code, answer.json()["version"]) == (200, 2)

    async def test_another_body_or_memory_is_refused(self, client: httpx2.AsyncClient) -> None:
        one, two = await _write(client), await _write(client, content="another")
        assert (await client.patch(one, json={"pinned": True}, headers=KEY)).status_code == 200
        for path, body in ((one, {"pinned": False}), (two, {"pinned": True})):
            refused = await client.patch(path, json=body, headers=KEY)
            assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
        refused = await client.delete(one, headers=KEY)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
        assert await _version(client, two) == 1

    async def test_thirty_at_once_make_one_change(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client)
        body = {"content": "changed once"}
        answers = await asyncio.gather(*(client.patch(path, json=body, headers=KEY) for _ in range(30)))

        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
        assert await _version(client, path) == 2

    async def test_a_change_of_a_memory_that_is_gone_by_now_is_404(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client)
        assert (await client.patch(path, json={"pinned": True}, headers=KEY)).status_code == 200
        assert (await client.delete(path)).status_code == 204
        assert (await client.patch(path, json={"pinned": True}, headers=KEY)).status_code == 404

    async def test_a_refused_change_leaves_the_key_free(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client)
        stale = await client.patch(path, json={"pinned": True}, headers={**KEY, "If-Match": '"9"'})
        good = await client.patch(path, json={"pinned": True}, headers=KEY)
        assert (stale.status_code, good.status_code) == (412, 200)
        assert "idempotency-replayed" not in good.headers

    async def test_the_record_holds_no_content(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        path = await _write(client)
        await client.patch(path, json={"content": "my secret"}, headers=KEY)
        async with database.tenant(tenant) as connection:
            rows = await connection.fetch("SELECT i::text AS row FROM idempotency i WHERE tenant_id = $1", tenant)
        assert len(rows) == 1
        assert "my secret" not in rows[0]["row"]


class TestDeletions:
    async def test_a_repeat_is_204_again(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client)
        first = await client.delete(path, headers=KEY)
        again = await client.delete(path, headers=KEY)
        assert (first.status_code, again.status_code, first.content, again.content) == (204, 204, b"", b"")
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        assert (await client.delete(path)).status_code == 404

    async def test_thirty_at_once_are_all_204(self, client: httpx2.AsyncClient) -> None:
        path = await _write(client)
        answers = await asyncio.gather(*(client.delete(path, headers=KEY) for _ in range(30)))
        assert {answer.status_code for answer in answers} == {204}
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1

    async def test_one_that_is_being_worked_on_for_long_is_409(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        path = await _write(client)
        async with database.tenant(tenant) as connection:
            await connection.execute(
                "INSERT INTO idempotency (tenant_id, key, route, body_hash) VALUES ($1, 'k', 'DELETE', '')", tenant
            )
            answer = await client.delete(path, headers=KEY)
        assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_in_flight")
        assert int(answer.headers["retry-after"]) > 0


class TestBoundKeys:
    async def test_a_key_of_another_bind_does_not_learn_of_the_request(self, service: Service) -> None:
        def token(user: str) -> dict[str, str]:
            principal = Principal(
                tenant=service.tenant, scopes=SCOPES, key_id=user, request_id="request-of-test", bind_user_id=user
            )
            return {"Authorization": f"Bearer {InternalTokens(SECRET).sign(principal)}", **KEY}

        async with service.running() as client:
            path = await _write(client, user_id="ana")
            assert (await client.delete(path, headers=token("bob"))).status_code == 404
            assert (await client.delete(path, headers=token("ana"))).status_code == 204
            assert (await client.delete(path, headers=token("bob"))).status_code == 404
            assert (await client.delete(path, headers=token("ana"))).status_code == 204

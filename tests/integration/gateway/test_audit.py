"""Who did what: what is told, to whom, and that nobody can change it."""

from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.integration.gateway.conftest import ADMIN, OPS_KEY, Gateway, bearer_of

from memplane_core.contracts.audit import AuditEntry
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio

OPS = {"Authorization": f"Bearer {OPS_KEY}"}


async def _told(door: Gateway, **query: Any) -> list[AuditEntry]:
    answer = await door.client.get("/admin/v1/audit", params=query, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return msgspec.convert(answer.json()["results"], list[AuditEntry])


class TestWhatIsTold:
    async def test_admin_actions_with_who_what_where_and_result(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant, "memories:read")
        path = f"/admin/v1/tenants/{tenant.id}"
        await door.client.patch(f"{path}/policy", json={"default_importance": 0.9}, headers=ADMIN)
        await door.client.patch(f"{path}/limits", json={"stored_memories": 7}, headers=ADMIN)
        await door.client.post(f"{path}/jobs", json={"kind": "reconcile"}, headers=ADMIN)
        last = await door.client.delete(f"{path}/keys/{key.id}", headers={**ADMIN, "X-Request-Id": "request-of-mine"})
        assert last.status_code == 204

        told = await _told(door, tenant_id=tenant.id)
        assert [(entry.action, entry.result, entry.actor) for entry in told] == [
            (action, "done", "admin")
            for action in (
                "revokeKey", "startTenantJob", "updateTenantLimits", "updateTenantPolicy", "createKey", "createTenant",
            )
        ]  # fmt: skip
        assert (told[0].target, told[0].request_id, told[0].source) == (key.id, "request-of-mine", "127.0.0.1")
        assert told[2].details == {"fields": ["stored_memories"]}
        assert told[-1].target == str(tenant.id)
        assert key.key not in str(told)

    async def test_what_a_tenant_does_to_itself_is_told_to_both(self, door: Gateway) -> None:
        tenant, other = await door.make_tenant(), await door.make_tenant()
        own = await door.make_key(tenant)
        await door.client.post("/v1/keys", json={"name": "x", "scopes": ["memories:read"]}, headers=bearer_of(own))

        mine = (await door.client.get("/v1/audit", headers=bearer_of(own))).json()["results"]
        assert [(entry["action"], entry["actor"]) for entry in mine] == [
            ("createOwnKey", own.id), ("createKey", "admin"), ("createTenant", "admin"),
        ]  # fmt: skip
        assert len(await _told(door, tenant_id=tenant.id)) == 3
        theirs = await door.client.get("/v1/audit", headers=bearer_of(await door.make_key(other)))
        assert {entry["tenant_id"] for entry in theirs.json()["results"]} == {str(other.id)}

    async def test_a_repeat_is_told_once(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        headers = {**bearer_of(await door.make_key(tenant)), "Idempotency-Key": "k"}
        for _ in range(3):
            await door.client.patch("/v1/policy", json={"default_importance": 0.9}, headers=headers)
        assert len(await _told(door, tenant_id=tenant.id, action="updatePolicy")) == 1

    async def test_what_fails_is_not_told_as_done(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        path = f"/admin/v1/tenants/{tenant.id}/keys/{'0' * 16}"
        assert (await door.client.delete(path, headers=ADMIN)).status_code == 404
        assert [entry.action for entry in await _told(door, tenant_id=tenant.id)] == ["createTenant"]


class TestRefusals:
    async def test_what_a_key_may_not_do_is_told(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        reader = await door.make_key(tenant, "memories:read")
        for method, path in (
            ("PATCH", "/v1/policy"),
            ("POST", "/v1/jobs"),
            ("DELETE", f"/v1/keys/{reader.id}"),
            ("DELETE", "/v1/memories/01990000-0000-7000-8000-000000000001"),
            ("DELETE", "/v1/observations/01990000-0000-7000-8000-000000000002"),
        ):
            body = {"kind": "reconcile"} if method == "POST" else None
            answer = await door.client.request(method, path, headers=bearer_of(reader), json=body)
            assert answer.status_code == 403
        # Neither reading nor writing memories is told, nor what sessions observe.
        assert (await door.client.get("/v1/keys", headers=bearer_of(reader))).status_code == 403
        write = await door.client.post("/v1/memories", json={"content": "a"}, headers=bearer_of(reader))
        assert write.status_code == 403
        for path in ("/v1/observations", "/v1/sessions/end"):
            body = {"content": "a", "session_id": "s"} if path == "/v1/observations" else {"session_id": "s"}
            assert (await door.client.post(path, json=body, headers=bearer_of(reader))).status_code == 403

        told = await _told(door, tenant_id=tenant.id, actor=reader.id)
        assert [(entry.action, entry.result) for entry in told] == [
            ("deleteObservation", "refused"), ("deleteMemory", "refused"), ("revokeOwnKey", "refused"),
            ("startJob", "refused"), ("updatePolicy", "refused"),
        ]  # fmt: skip
        assert told[0].target == "01990000-0000-7000-8000-000000000002"
        assert told[2].target == reader.id

    async def test_a_path_that_names_no_id_is_refused_and_told_without_it(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        reader = await door.make_key(tenant, "memories:read")
        for name, status in {"a%00b": 404, "%0Aforged": 404, "x" * 500: 403, "%E2%82%AC": 403}.items():
            answer = await door.client.delete(f"/v1/keys/{name}", headers=bearer_of(reader))
            assert answer.status_code == status
        assert [entry.target for entry in await _told(door, tenant_id=tenant.id, actor=reader.id)] == [""] * 2

    async def test_what_the_ops_key_may_not_do_is_told(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        async with door.another(ops_key=OPS_KEY) as gateway:
            path = f"/admin/v1/tenants/{tenant.id}/policy"
            assert (await gateway.patch(path, json={"default_importance": 1}, headers=OPS)).status_code == 403
        [entry] = await _told(door, tenant_id=tenant.id, actor="ops")
        assert (entry.action, entry.result, entry.target) == ("updateTenantPolicy", "refused", str(tenant.id))


class TestFinding:
    async def test_by_actor_action_and_time_page_by_page_and_exported(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant)
        for _ in range(5):
            await door.client.patch("/v1/policy", json={"default_importance": 0.9}, headers=bearer_of(key))
        middle = datetime.now(UTC).isoformat()
        await door.client.patch("/v1/policy", json={"default_importance": 0.9}, headers=bearer_of(key))

        assert len(await _told(door, tenant_id=tenant.id, actor=key.id)) == 6
        assert len(await _told(door, tenant_id=tenant.id, actor=key.id, to=middle)) == 5
        assert len(await _told(door, tenant_id=tenant.id, **{"from": middle})) == 1
        assert await _told(door, tenant_id=tenant.id, action="startJob") == []
        for path, headers in (("/admin/v1/audit", ADMIN), ("/v1/audit", bearer_of(key))):
            query: dict[str, Any] = {"tenant_id": str(tenant.id)} if headers is ADMIN else {}
            whole = (await door.client.get(path, params=query, headers=headers)).json()["results"]
            pages: list[Any] = []
            while True:
                page = (await door.client.get(path, params={**query, "limit": 3}, headers=headers)).json()
                pages += page["results"]
                if page["next_cursor"] is None:
                    break
                query["cursor"] = page["next_cursor"]
            assert pages == whole
            assert len(whole) == 8
        exported = await door.client.get("/admin/v1/audit/export", params={"tenant_id": str(tenant.id)}, headers=ADMIN)
        assert exported.headers["content-type"].startswith("application/x-ndjson")
        assert [msgspec.json.decode(line) for line in exported.content.splitlines()] == whole

    @pytest.mark.parametrize(
        "query",
        [
            {"from": "yesterday"},
            {"cursor": "x"},
            {"tenant_id": "x"},
            {"tenant_id": "null"},
            {"who": "x"},
            {"actor": "a\0"},
        ],
    )
    async def test_what_cannot_be_read_is_named(self, door: Gateway, query: dict[str, str]) -> None:
        answer = await door.client.get("/admin/v1/audit", params=query, headers=ADMIN)
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["errors"][0]["pointer"] == next(iter(query))

    async def test_a_tenant_needs_its_admin_scope(self, door: Gateway) -> None:
        reader = await door.make_key(await door.make_tenant(), "memories:read", "memories:admin")
        assert (await door.client.get("/v1/audit", headers=bearer_of(reader))).status_code == 403


class TestAppendOnly:
    @pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'nobody'", "DELETE FROM audit", "TRUNCATE audit"])
    async def test_the_service_role_can_change_nothing(self, door: Gateway, database: Database, statement: str) -> None:
        tenant = await door.make_tenant()
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with database.tenant(TenantId(tenant.id)) as connection:
                await connection.execute(statement)
        assert len(await _told(door, tenant_id=tenant.id)) == 1

    async def test_the_service_role_sees_and_adds_only_its_tenants_rows(
        self, door: Gateway, database: Database
    ) -> None:
        tenant, other = await door.make_tenant(), await door.make_tenant()
        async with database.tenant(TenantId(tenant.id)) as connection:
            assert await connection.fetchval("SELECT count(*) FROM audit") == 1
        async with database.system() as connection:
            assert await connection.fetchval("SELECT count(*) FROM audit") == 0
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with database.tenant(TenantId(tenant.id)) as connection:
                await connection.execute(
                    "INSERT INTO audit (tenant_id, actor, action, target, result, request_id, details)"
                    " VALUES ($1, 'x', 'x', 'x', 'done', 'x', '{}')",
                    other.id,
                )

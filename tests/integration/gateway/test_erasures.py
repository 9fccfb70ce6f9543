"""The routes that erase persons and tenants, as callers see them; nobody works on what they ask for."""

from uuid import uuid4

import httpx2
import pytest
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

from memplane_core.contracts.admin import KeyCreated, TenantView
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio


class Caller:
    """A tenant's key, and what is asked with it."""

    def __init__(self, door: Gateway, tenant: TenantView, key: KeyCreated) -> None:
        self.client = door.client
        self.tenant = tenant
        self.headers = bearer_of(key)

    async def erase(self, body: object, **headers: str) -> httpx2.Response:
        return await self.client.post("/v1/erasures", json=body, headers={**self.headers, **headers})

    async def get(self, path: str, **query: str) -> httpx2.Response:
        return await self.client.get(path, params=query, headers=self.headers)


@pytest.fixture
async def caller(door: Gateway) -> Caller:
    tenant = await door.make_tenant()
    return Caller(door, tenant, await door.make_key(tenant))


class TestPersons:
    async def test_an_erasure_is_accepted_and_tells_how_it_goes(self, caller: Caller) -> None:
        answer = await caller.erase({"user_id": "ana"})
        assert answer.status_code == 202, answer.text
        view = answer.json()
        assert answer.headers["Location"] == f"/v1/erasures/{view['id']}"
        assert (view["state"], view["kind"], view["erased"], view["receipt"]) == ("running", "user", {}, None)
        assert "ana" not in answer.text.replace(view["subject"], "")
        assert (await caller.get(answer.headers["Location"])).json() == view

    async def test_two_of_one_subject_are_one_and_another_subject_is_another(self, caller: Caller) -> None:
        first = (await caller.erase({"user_id": "ana"})).json()["id"]
        again = await caller.erase({"user_id": "ana"})
        assert (again.status_code, again.json()["id"]) == (202, first)
        kinds = [(await caller.erase(who)).json()["kind"] for who in ({"agent_id": "ana"}, {"user_id": "x"})]
        pair = (await caller.erase({"user_id": "ana", "agent_id": "bot"})).json()
        assert [*kinds, pair["kind"]] == ["agent", "user", "pair"]
        page = (await caller.get("/v1/erasures", limit="2")).json()
        assert len(page["results"]) == 2
        assert page["results"][0]["id"] == pair["id"]
        rest = (await caller.get("/v1/erasures", cursor=page["next_cursor"])).json()
        assert [one["id"] for one in rest["results"]][-1] == first
        found = (await caller.get("/v1/erasures", user_id="ana")).json()["results"]
        assert [one["id"] for one in found] == [first]

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({}, ""),
            ({"user_id": None, "agent_id": None}, ""),
            ({"user_id": ""}, "/user_id"),
            ({"user_id": 3}, "/user_id"),
            ({"user_id": "a\0b"}, "/user_id"),
            ({"agent_id": "é" * 129}, "/agent_id"),
            ({"user_id": "ana", "session_id": "s"}, "/session_id"),
        ],
    )
    async def test_what_names_nobody_is_refused(self, caller: Caller, body: object, pointer: str) -> None:
        answer = await caller.erase(body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text

    async def test_only_unbound_keys_that_may_administer_memories(self, door: Gateway, caller: Caller) -> None:
        writer = bearer_of(await door.make_key(caller.tenant, "memories:write", "tenant:admin"))
        body = {"name": "b", "scopes": ["memories:admin"], "bind": {"user_id": "ana"}}
        made = await caller.client.post(f"/admin/v1/tenants/{caller.tenant.id}/keys", json=body, headers=ADMIN)
        bound = {"Authorization": f"Bearer {made.json()['key']}"}
        for headers in (writer, bound):
            for answer in (
                await caller.erase({"user_id": "ana"}, **headers),
                await caller.client.get("/v1/erasures", headers=headers),
                await caller.client.get(f"/v1/erasures/{uuid4()}", headers=headers),
            ):
                assert answer.status_code == 403

    async def test_another_tenants_erasure_is_not_found(self, door: Gateway, caller: Caller) -> None:
        mine = (await caller.erase({"user_id": "ana"})).json()["id"]
        other = await door.make_tenant()
        headers = bearer_of(await door.make_key(other))
        assert (await caller.client.get(f"/v1/erasures/{mine}", headers=headers)).status_code == 404
        assert (await caller.client.get("/v1/erasures", headers=headers)).json()["results"] == []

    async def test_a_repeat_does_nothing_and_neither_it_nor_the_audit_keeps_the_name(
        self, caller: Caller, database: Database
    ) -> None:
        name = f"name{uuid4().hex}"
        first = await caller.erase({"user_id": name}, **{"Idempotency-Key": name})
        again = await caller.erase({"user_id": name}, **{"Idempotency-Key": name})
        assert (again.status_code, again.headers["Idempotency-Replayed"]) == (202, "true")
        assert again.json()["id"] == first.json()["id"]
        other = await caller.erase({"user_id": "x"}, **{"Idempotency-Key": name})
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
        tenant = TenantId(caller.tenant.id)
        async with database.tenant(tenant) as connection:
            kept = [
                str(dict(row))  # pyright: ignore[reportArgumentType, reportCallIssue]
                for table in ("audit", "idempotency", "job")
                for row in await connection.fetch(f"SELECT t::text AS t FROM {table} t")
            ]
        assert len(kept) >= 4
        assert not [row for row in kept if name in row]
        [told] = (await caller.get("/v1/audit", action="startErasure")).json()["results"]
        assert (told["target"], told["details"]["kind"]) == (first.json()["id"], "user")
        assert first.json()["subject"] == f"hmac-sha256:{told['details']['subject']}"

    async def test_its_job_cannot_be_cancelled(self, caller: Caller) -> None:
        await caller.erase({"user_id": "ana"})
        [job] = (await caller.get("/v1/jobs", kind="erase")).json()["results"]
        assert job["params"] == {}
        answer = await caller.client.post(f"/v1/jobs/{job['id']}/cancel", headers=caller.headers)
        assert answer.status_code == 409


class TestTenants:
    async def delete(self, caller: Caller, headers: dict[str, str] = ADMIN, **query: str) -> httpx2.Response:
        return await caller.client.delete(f"/admin/v1/tenants/{caller.tenant.id}", params=query, headers=headers)

    async def test_it_is_gone_at_once_with_its_keys_and_its_name_is_free(self, caller: Caller) -> None:
        assert (await caller.get("/v1/whoami")).status_code == 200
        answer = await self.delete(caller, name=caller.tenant.name)
        assert answer.status_code == 202, answer.text
        assert answer.headers["Location"] == f"/admin/v1/tenants/{caller.tenant.id}/erasure"
        assert answer.json()["kind"] == "tenant"
        assert (await caller.get("/v1/whoami")).status_code == 401
        gone = f"/admin/v1/tenants/{caller.tenant.id}"
        assert (await caller.client.get(gone, headers=ADMIN)).status_code == 404
        found = await caller.client.get(answer.headers["Location"], headers=ADMIN)
        assert (found.status_code, found.json()["id"]) == (200, answer.json()["id"])
        again = await caller.client.post("/admin/v1/tenants", json={"name": caller.tenant.name}, headers=ADMIN)
        assert again.status_code == 201
        assert again.json()["id"] != str(caller.tenant.id)
        repeated = await self.delete(caller, name=caller.tenant.name)
        assert (repeated.status_code, repeated.json()["id"]) == (202, answer.json()["id"])
        told = await caller.client.get("/admin/v1/audit", params={"tenant_id": str(caller.tenant.id)}, headers=ADMIN)
        assert [entry["action"] for entry in told.json()["results"]].count("deleteTenant") == 1

    async def test_it_has_to_be_named(self, caller: Caller) -> None:
        given: list[dict[str, str]] = [{}, {"name": "another"}, {"name": caller.tenant.name, "force": "yes"}]
        for query, pointer in zip(given, ("name", "name", "force"), strict=True):
            answer = await self.delete(caller, ADMIN, **query)
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
        assert (await caller.get("/v1/whoami")).status_code == 200

    async def test_only_with_the_admin_key_and_only_one_that_was_there(self, caller: Caller) -> None:
        assert (await self.delete(caller, caller.headers, name=caller.tenant.name)).status_code == 401
        nobody = f"/admin/v1/tenants/{uuid4()}"
        assert (await caller.client.delete(nobody, params={"name": "x"}, headers=ADMIN)).status_code == 404
        assert (await caller.client.get(f"{nobody}/erasure", headers=ADMIN)).status_code == 404

    async def test_a_repeat_is_answered_by_what_was_begun(self, caller: Caller) -> None:
        headers = {**ADMIN, "Idempotency-Key": uuid4().hex}
        first = await self.delete(caller, headers, name=caller.tenant.name)
        again = await self.delete(caller, headers, name=caller.tenant.name)
        assert (again.status_code, again.headers["Idempotency-Replayed"]) == (202, "true")
        assert again.json()["id"] == first.json()["id"]

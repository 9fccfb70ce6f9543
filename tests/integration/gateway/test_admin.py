"""Tenants and keys through the admin routes, over a real Postgres."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from dirty_equals import IsDatetime, IsUUID
from httpx2 import Response
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

from memplane_core.domain.tenancy import TenantId
from memplane_core.security.keys import parse_key
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio


def fault(answer: Response) -> str:
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()["errors"][0]["pointer"]


class TestCreatingTenants:
    async def test_a_tenant_comes_with_a_generation_of_the_default_model(
        self, door: Gateway, database: Database
    ) -> None:
        name = f"acme {uuid4().hex}"
        answer = await door.client.post("/admin/v1/tenants", json={"name": name}, headers=ADMIN)
        assert answer.status_code == 201
        assert answer.json() == {"id": IsUUID(), "name": name, "created_at": IsDatetime(iso_string=True)}
        tenant = TenantId(UUID(answer.json()["id"]))
        assert tenant.version == 7
        async with database.tenant(tenant) as connection:
            row = await connection.fetchrow("SELECT * FROM generation")
        assert row is not None
        assert (row["number"], row["model"], row["dim"], row["index_type"], row["state"]) == (
            1, "test-model", 24, "HNSW", "absent",
        )  # fmt: skip
        assert row["index_params"] == {"M": 32, "efConstruction": 400}

    async def test_a_name_is_given_to_one_living_tenant_only(self, door: Gateway) -> None:
        body = {"name": f"acme {uuid4().hex}"}
        assert (await door.client.post("/admin/v1/tenants", json=body, headers=ADMIN)).status_code == 201
        again = await door.client.post("/admin/v1/tenants", json=body, headers=ADMIN)
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        assert body["name"] in again.json()["detail"]

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({}, "/name"),
            ({"name": ""}, "/name"),
            ({"name": "x" * 129}, "/name"),
            ({"name": 7}, "/name"),
            ({"name": "a\0b"}, "/name"),
            ({"name": " a"}, "/name"),
            ({"name": "a", "id": "b"}, "/id"),
        ],
    )
    async def test_a_bad_name_is_refused_by_field(self, door: Gateway, body: dict[str, Any], pointer: str) -> None:
        assert fault(await door.client.post("/admin/v1/tenants", json=body, headers=ADMIN)) == pointer

    async def test_a_body_that_is_no_json_is_a_400(self, door: Gateway) -> None:
        answer = await door.client.post(
            "/admin/v1/tenants", content=b"{", headers=ADMIN | {"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_request")

    async def test_without_the_embedding_service_none_can_be_made(self, gateway: Gateway) -> None:
        async with gateway.running() as client:
            name = f"later {uuid4().hex}"
            away = await client.post("/admin/v1/tenants", json={"name": name}, headers=ADMIN)
            assert (away.status_code, away.json()["code"]) == (503, "embedding_unavailable")
            assert int(away.headers["retry-after"]) >= 1
            async with gateway.embedding.running():
                assert (await client.post("/admin/v1/tenants", json={"name": name}, headers=ADMIN)).status_code == 201


class TestFindingTenants:
    async def test_a_tenant_is_got_by_id_and_an_unknown_one_is_not_found(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        found = await door.client.get(f"/admin/v1/tenants/{tenant.id}", headers=ADMIN)
        assert (found.status_code, found.json()["name"]) == (200, tenant.name)
        for unknown in (str(uuid4()), "nonsense"):
            answer = await door.client.get(f"/admin/v1/tenants/{unknown}", headers=ADMIN)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    async def test_all_tenants_are_paged_through_in_order(self, door: Gateway) -> None:
        made = [(await door.make_tenant()).id for _ in range(5)]
        seen: list[str] = []
        cursor: str | None = None
        while True:
            query: dict[str, Any] = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            page = (await door.client.get("/admin/v1/tenants", params=query, headers=ADMIN)).json()
            assert len(page["results"]) <= 2
            seen += [tenant["id"] for tenant in page["results"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert len(seen) == len(set(seen))
        assert [tenant for tenant in seen if UUID(tenant) in made] == [str(tenant) for tenant in made]

    @pytest.mark.parametrize(
        ("query", "pointer"),
        [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("cursor=zz", "cursor"),
            ("page=2", "page"),
            ("limit=1&limit=2", "limit"),
        ],
    )
    async def test_a_bad_parameter_is_named(self, door: Gateway, query: str, pointer: str) -> None:
        assert fault(await door.client.get(f"/admin/v1/tenants?{query}", headers=ADMIN)) == pointer


class TestKeys:
    async def test_a_new_key_is_shown_once_and_only_its_digest_is_stored(
        self, door: Gateway, database: Database
    ) -> None:
        tenant = await door.make_tenant()
        path = f"/admin/v1/tenants/{tenant.id}/keys"
        body = {"name": "app", "scopes": ["memories:write", "memories:read", "memories:read"]}
        made = await door.client.post(path, json=body, headers=ADMIN)
        assert made.status_code == 201
        key = made.json()
        presented = parse_key(key["key"])
        assert presented is not None
        assert presented.id == key["id"]
        assert key["scopes"] == ["memories:read", "memories:write"]
        listed = (await door.client.get(path, headers=ADMIN)).json()
        assert listed == {
            "results": [{name: value for name, value in key.items() if name != "key"}],
            "next_cursor": None,
        }
        async with database.tenant(TenantId(tenant.id)) as connection:
            row = await connection.fetchrow("SELECT k::text AS whole, length(digest) AS size FROM api_key k")
        assert row is not None
        assert key["key"][20:] not in row["whole"]
        assert row["size"] == 32

    async def test_keys_are_paged_through_in_the_order_they_were_made(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        made = [(await door.make_key(tenant)).id for _ in range(5)]
        path = f"/admin/v1/tenants/{tenant.id}/keys"
        first = (await door.client.get(f"{path}?limit=3", headers=ADMIN)).json()
        rest = (await door.client.get(f"{path}?limit=3&cursor={first['next_cursor']}", headers=ADMIN)).json()
        assert [key["id"] for key in first["results"] + rest["results"]] == made
        assert rest["next_cursor"] is None
        assert fault(await door.client.get(f"{path}?cursor=nonsense", headers=ADMIN)) == "cursor"

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"name": "k"}, "/scopes"),
            ({"name": "k", "scopes": []}, "/scopes"),
            ({"name": "k", "scopes": ["memories:fly"]}, "/scopes/0"),
            ({"name": "k", "scopes": ["memories:read"], "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
            ({"name": "k", "scopes": ["memories:read"], "expires_at": "soon"}, "/expires_at"),
        ],
    )
    async def test_a_bad_key_request_is_refused_by_field(
        self, door: Gateway, body: dict[str, Any], pointer: str
    ) -> None:
        tenant = await door.make_tenant()
        answer = await door.client.post(f"/admin/v1/tenants/{tenant.id}/keys", json=body, headers=ADMIN)
        assert fault(answer) == pointer

    async def test_a_tenant_that_is_not_there_has_no_keys(self, door: Gateway) -> None:
        path = f"/admin/v1/tenants/{uuid4()}/keys"
        body = {"name": "k", "scopes": ["memories:read"]}
        assert (await door.client.post(path, json=body, headers=ADMIN)).status_code == 404
        assert (await door.client.get(path, headers=ADMIN)).status_code == 404
        assert (await door.client.delete(f"{path}/abc", headers=ADMIN)).status_code == 404

    async def test_the_keys_of_another_tenant_can_be_neither_seen_nor_revoked(self, door: Gateway) -> None:
        mine, other = await door.make_tenant(), await door.make_tenant()
        key = await door.make_key(mine)
        listed = (await door.client.get(f"/admin/v1/tenants/{other.id}/keys", headers=ADMIN)).json()
        assert listed["results"] == []
        revoked = await door.client.delete(f"/admin/v1/tenants/{other.id}/keys/{key.id}", headers=ADMIN)
        assert revoked.status_code == 404
        seen = await door.client.get("/v1/whoami", headers=bearer_of(key))
        assert seen.status_code == 200, seen.text


class TestRevoking:
    async def test_a_revoked_key_is_refused_at_once_here_and_listed_as_revoked(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant)
        seen = await door.client.get("/v1/whoami", headers=bearer_of(key))
        assert seen.status_code == 200, seen.text
        path = f"/admin/v1/tenants/{tenant.id}/keys"
        for _ in range(2):
            assert (await door.client.delete(f"{path}/{key.id}", headers=ADMIN)).status_code == 204
        assert (await door.client.get("/v1/whoami", headers=bearer_of(key))).status_code == 401
        [listed] = (await door.client.get(path, headers=ADMIN)).json()["results"]
        assert listed["revoked_at"] == IsDatetime(iso_string=True)

    async def test_another_gateway_feels_a_revocation_when_its_trust_ends(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant)
        async with door.another(key_cache_s=0) as other:
            assert (await other.get("/v1/whoami", headers=bearer_of(key))).status_code == 200
            await door.client.delete(f"/admin/v1/tenants/{tenant.id}/keys/{key.id}", headers=ADMIN)
            assert (await other.get("/v1/whoami", headers=bearer_of(key))).status_code == 401

    async def test_a_key_expires_by_itself(self, door: Gateway, database: Database) -> None:
        tenant = await door.make_tenant()
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        body = {"name": "k", "scopes": ["memories:read"], "expires_at": later}
        answer = await door.client.post(f"/admin/v1/tenants/{tenant.id}/keys", json=body, headers=ADMIN)
        key = answer.json()
        headers = {"X-API-Key": key["key"]}
        async with door.another(key_cache_s=0) as other:
            assert (await other.get("/v1/whoami", headers=headers)).status_code == 200
            async with database.tenant(TenantId(tenant.id)) as connection:
                await connection.execute(
                    "UPDATE api_key SET expires_at = now() - interval '1 second' WHERE id = $1", key["id"]
                )
            assert (await other.get("/v1/whoami", headers=headers)).status_code == 401

    async def test_the_keys_of_a_deleted_tenant_are_refused(self, door: Gateway, database: Database) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant)
        async with database.tenant(TenantId(tenant.id)) as connection:
            await connection.execute("UPDATE tenant SET deleted_at = now()")
        assert (await door.client.get("/v1/whoami", headers=bearer_of(key))).status_code == 401
        assert (await door.client.get(f"/admin/v1/tenants/{tenant.id}", headers=ADMIN)).status_code == 404

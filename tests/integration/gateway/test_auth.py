"""Who is let in where, and what those hear who are not."""

import pytest
from tests.integration.gateway.conftest import ADMIN, PEPPER, Gateway, bearer_of

from memplane_core.domain.tenancy import Scope
from memplane_core.security.keys import SECRET_LENGTH, Keyring, key_text

pytestmark = pytest.mark.anyio

MEMORY = "/v1/memories/01990000-0000-7000-8000-000000000001"
ROUTES = [
    ("POST", "/v1/memories", {"content": "a"}, "memories:write"),
    ("POST", "/v1/memories/batch", {"memories": [{"content": "a"}]}, "memories:write"),
    ("POST", "/v1/memories/search", {"query": "a"}, "memories:read"),
    ("GET", "/v1/memories", None, "memories:read"),
    ("GET", MEMORY, None, "memories:read"),
    ("PATCH", MEMORY, {"pinned": True}, "memories:write"),
    ("DELETE", MEMORY, None, "memories:write"),
]
OTHERS: dict[str, list[Scope]] = {
    "memories:write": ["memories:read", "memories:admin", "tenant:admin"],
    "memories:read": ["memories:write", "memories:admin", "tenant:admin"],
}


class TestRefusals:
    async def test_all_wrong_keys_hear_the_same(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        good = await door.make_key(tenant)
        revoked = await door.make_key(tenant)
        await door.client.delete(f"/admin/v1/tenants/{tenant.id}/keys/{revoked.id}", headers=ADMIN)
        mistyped = good.key[:-1] + ("0" if good.key[-1] != "0" else "1")
        wrong = [
            {},
            {"Authorization": "Bearer"},
            {"Authorization": f"Basic {good.key}"},
            {"Authorization": f"Bearer {mistyped}"},
            {"Authorization": f"Bearer {Keyring([PEPPER]).issue().text}"},
            {"Authorization": f"Bearer {Keyring(['another pepper']).issue().text}"},
            {"X-API-Key": revoked.key},
            ADMIN,
        ]
        heard: set[tuple[int, str, str, str]] = set()
        for headers in wrong:
            answer = await door.client.get("/v1/whoami", headers=headers)
            problem = answer.json()
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["x-request-id"] == problem.pop("request_id")
            heard.add((answer.status_code, answer.headers["www-authenticate"], problem["code"], str(problem)))
        assert len(heard) == 1
        assert next(iter(heard))[:3] == (401, 'Bearer realm="memplane"', "unauthorized")

    async def test_a_genuine_id_with_another_secret_is_refused(self, door: Gateway) -> None:
        good = await door.make_key(await door.make_tenant())
        forged = key_text(good.id, "0" * SECRET_LENGTH)
        assert (await door.client.get("/v1/whoami", headers={"X-API-Key": forged})).status_code == 401
        assert (await door.client.get("/v1/whoami", headers=bearer_of(good))).status_code == 200

    @pytest.mark.parametrize(("method", "path"), [("GET", "/admin/v1/tenants"), ("POST", "/admin/v1/tenants")])
    async def test_a_tenants_key_opens_no_admin_route(self, door: Gateway, method: str, path: str) -> None:
        key = await door.make_key(await door.make_tenant())
        for headers in ({}, bearer_of(key), {"X-API-Key": "x"}):
            answer = await door.client.request(
                method, path, headers=headers, json={"name": "x"} if method == "POST" else None
            )
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")

    async def test_no_refused_request_reaches_another_service(self, door: Gateway) -> None:
        key = await door.make_key(await door.make_tenant(), "tenant:admin")
        for method, path, body, _ in ROUTES:
            assert (await door.client.request(method, path, json=body)).status_code == 401
            assert (await door.client.request(method, path, json=body, headers=bearer_of(key))).status_code == 403
        assert door.retrieval.received == []


class TestScopes:
    @pytest.mark.parametrize(("method", "path", "body", "scope"), ROUTES)
    async def test_each_route_needs_its_own_scope(
        self, door: Gateway, method: str, path: str, body: dict[str, object] | None, scope: Scope
    ) -> None:
        tenant = await door.make_tenant()
        lacking, holding = await door.make_key(tenant, *OTHERS[scope]), await door.make_key(tenant, scope)
        refused = await door.client.request(method, path, json=body, headers=bearer_of(lacking))
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert repr(scope) in refused.json()["detail"]
        door.retrieval.respond = door.answering(204)
        passed = await door.client.request(method, path, json=body, headers=bearer_of(holding))
        assert passed.status_code == 204
        [received] = door.retrieval.received
        assert received.principal.tenant == tenant.id
        assert received.principal.scopes == {scope}
        assert received.principal.key_id == holding.id
        assert received.principal.request_id == passed.headers["x-request-id"]

    async def test_whoami_tells_the_key_about_itself(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant, "memories:write", "memories:read")
        for headers in ({"Authorization": f"Token {key.key}"}, {"X-API-Key": key.key}, bearer_of(key)):
            answer = await door.client.get("/v1/whoami", headers=headers)
            assert answer.json() == {
                "tenant_id": str(tenant.id),
                "tenant_name": tenant.name,
                "key_id": key.id,
                "key_name": "test",
                "scopes": ["memories:read", "memories:write"],
                "bind": None,
                "expires_at": None,
            }


class TestOutage:
    async def test_while_postgres_is_away_new_keys_are_answered_503(self, gateway: Gateway) -> None:
        async with gateway.embedding.running(), gateway.running():
            key = await gateway.make_key(await gateway.make_tenant())
        async with gateway.without_postgres() as client:
            answer = await client.get("/v1/whoami", headers=bearer_of(key))
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            ready = await client.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["parts"]["postgres"] != "ok"
            assert (await client.get("/healthz")).status_code == 200

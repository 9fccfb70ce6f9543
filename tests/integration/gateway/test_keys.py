"""Keys over their lives: bound, replaced, revoked, used; made by ops or by a tenant of its own."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from tests.integration.gateway.conftest import ADMIN, ADMIN_KEY, OPS_KEY, PEPPER, Gateway, bearer_of

from memplane_core.contracts.admin import KeyCreated, TenantView
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio

OPS = {"Authorization": f"Bearer {OPS_KEY}"}
NEW_PEPPER = "newer pepper of the tests, which is long enough"


def path_of(tenant: TenantView, key: KeyCreated | None = None) -> str:
    """Admin route of a tenant's keys, or of one of them."""
    keys = f"/admin/v1/tenants/{tenant.id}/keys"
    return keys if key is None else f"{keys}/{key.id}"


async def make(door: Gateway, tenant: TenantView, **fields: Any) -> KeyCreated:
    """A key with all scopes, made by the operator."""
    body = {"name": "test", "scopes": ["memories:read", "memories:write", "memories:admin", "tenant:admin"], **fields}
    answer = await door.client.post(path_of(tenant), json=body, headers=ADMIN)
    assert answer.status_code == 201, answer.text
    return msgspec.json.decode(answer.content, type=KeyCreated)


async def status_of(client: httpx2.AsyncClient, key: KeyCreated) -> int:
    """What a key is answered."""
    return (await client.get("/v1/whoami", headers=bearer_of(key))).status_code


async def expiry_of(database: Database, tenant: TenantView, key: KeyCreated) -> datetime | None:
    async with database.tenant(TenantId(tenant.id)) as connection:
        return await connection.fetchval("SELECT expires_at FROM api_key WHERE id = $1", key.id)


class TestBinding:
    async def test_a_bound_key_tells_it_and_carries_it_to_retrieval(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await make(door, tenant, bind={"user_id": "ana"})
        assert key.bind is not None
        assert (key.bind.user_id, key.bind.agent_id) == ("ana", None)
        seen = (await door.client.get("/v1/whoami", headers=bearer_of(key))).json()
        assert seen["bind"] == {"user_id": "ana", "agent_id": None}
        door.retrieval.respond = door.answering(200, b"{}")
        await door.client.post("/v1/memories/search", json={"query": "a"}, headers=bearer_of(key))
        [received] = door.retrieval.received
        assert (received.principal.bind_user_id, received.principal.bind_agent_id) == ("ana", None)

    async def test_all_routes_but_those_of_memories_are_closed_to_it(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await make(door, tenant, bind={"agent_id": "concierge"})
        closed: list[tuple[str, str, dict[str, Any] | None]] = [
            ("GET", "/v1/keys", None),
            ("POST", "/v1/keys", {"name": "k", "scopes": ["memories:read"]}),
            ("DELETE", f"/v1/keys/{key.id}", None),
            ("POST", f"/v1/keys/{key.id}/rotate", {}),
            ("GET", "/v1/policy", None),
            ("PATCH", "/v1/policy", {"require_user": False}),
            ("GET", "/v1/usage", None),
            ("GET", "/v1/jobs", None),
            ("POST", "/v1/jobs", {"kind": "reindex"}),
        ]
        for method, path, body in closed:
            answer = await door.client.request(method, path, json=body, headers=bearer_of(key))
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path

    @pytest.mark.parametrize(
        ("bind", "pointer"),
        [
            ({}, "/bind"),
            ({"user_id": ""}, "/bind/user_id"),
            ({"user_id": "é" * 129}, "/bind/user_id"),
            ({"user_id": "a\0"}, "/bind/user_id"),
            ({"session_id": "s"}, "/bind/session_id"),
        ],
    )
    async def test_a_bad_bind_is_refused_by_field(self, door: Gateway, bind: dict[str, str], pointer: str) -> None:
        tenant = await door.make_tenant()
        body = {"name": "k", "scopes": ["memories:read"], "bind": bind}
        answer = await door.client.post(path_of(tenant), json=body, headers=ADMIN)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


class TestRotating:
    async def test_both_are_valid_until_the_overlap_ends(self, door: Gateway, database: Database) -> None:
        tenant = await door.make_tenant()
        old = await make(door, tenant, bind={"user_id": "ana"})
        answer = await door.client.post(f"{path_of(tenant, old)}/rotate", json={"overlap_s": 3600}, headers=ADMIN)
        assert answer.status_code == 201, answer.text
        new = msgspec.json.decode(answer.content, type=KeyCreated)
        assert new.id != old.id
        assert (new.name, new.scopes, new.bind, new.expires_at) == (old.name, old.scopes, old.bind, None)
        assert [await status_of(door.client, key) for key in (old, new)] == [200, 200]
        ends = await expiry_of(database, tenant, old)
        assert ends is not None
        assert abs((ends - datetime.now(UTC)).total_seconds() - 3600) < 60
        listed = (await door.client.get(path_of(tenant), headers=ADMIN)).json()["results"]
        assert [(key["id"], key["replaced_by"]) for key in listed] == [(old.id, new.id), (new.id, None)]
        async with database.tenant(TenantId(tenant.id)) as connection:
            await connection.execute("UPDATE api_key SET expires_at = now() WHERE id = $1", old.id)
        async with door.another() as other:
            assert [await status_of(other, key) for key in (old, new)] == [401, 200]

    async def test_without_an_overlap_the_old_one_ends_at_once(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        old = await make(door, tenant)
        assert await status_of(door.client, old) == 200
        answer = await door.client.post(f"{path_of(tenant, old)}/rotate", json={"overlap_s": 0}, headers=ADMIN)
        new = msgspec.json.decode(answer.content, type=KeyCreated)
        assert [await status_of(door.client, key) for key in (old, new)] == [401, 200]

    async def test_no_overlap_lengthens_the_old_ones_life(self, door: Gateway, database: Database) -> None:
        tenant = await door.make_tenant()
        soon = datetime.now(UTC) + timedelta(minutes=5)
        old = await make(door, tenant, expires_at=soon.isoformat())
        later = (soon + timedelta(days=90)).isoformat()
        body = {"overlap_s": 86400, "expires_at": later}
        answer = await door.client.post(f"{path_of(tenant, old)}/rotate", json=body, headers=ADMIN)
        assert datetime.fromisoformat(answer.json()["expires_at"]) == soon + timedelta(days=90)
        assert await expiry_of(database, tenant, old) == soon

    async def test_of_two_at_once_one_succeeds(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        old = await make(door, tenant)
        answers: list[httpx2.Response] = []

        async def rotate() -> None:
            answers.append(await door.client.post(f"{path_of(tenant, old)}/rotate", json={}, headers=ADMIN))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(rotate)
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]
        [made] = [answer.json()["id"] for answer in answers if answer.status_code == 201]
        assert all(made in answer.json()["detail"] for answer in answers if answer.status_code == 409)

    async def test_a_revoked_or_unknown_key_has_no_successor(self, door: Gateway) -> None:
        tenant, other = await door.make_tenant(), await door.make_tenant()
        key, theirs = await make(door, tenant), await make(door, other)
        await door.client.delete(path_of(tenant, key), headers=ADMIN)
        answers = [
            await door.client.post(f"{path}/rotate", json={}, headers=ADMIN)
            for path in (path_of(tenant, key), path_of(tenant, theirs), f"{path_of(tenant)}/x")
        ]
        assert [answer.status_code for answer in answers] == [409, 404, 404]
        assert await status_of(door.client, theirs) == 200

    @pytest.mark.parametrize("overlap_s", [-1, 30 * 24 * 3600 + 1, 1.5, "60"])
    async def test_a_bad_overlap_is_named(self, door: Gateway, overlap_s: object) -> None:
        tenant = await door.make_tenant()
        key = await make(door, tenant)
        answer = await door.client.post(f"{path_of(tenant, key)}/rotate", json={"overlap_s": overlap_s}, headers=ADMIN)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/overlap_s")


class TestRevoking:
    async def test_every_gateway_feels_it_within_its_trust(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await make(door, tenant)
        async with door.another(key_cache_s=1) as other:
            assert await status_of(other, key) == 200
            assert (await door.client.delete(path_of(tenant, key), headers=ADMIN)).status_code == 204
            began = time.monotonic()
            while await status_of(other, key) == 200:
                assert time.monotonic() - began < 5, "a revoked key is trusted for longer than that"
                await anyio.sleep(0.05)
        with pytest.raises(ValueError, match="key_cache_s"):
            door.settings(key_cache_s=30)


class TestOwnKeys:
    async def test_a_tenant_makes_lists_replaces_and_revokes_its_own(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        mine = await make(door, tenant)
        headers = bearer_of(mine)
        body = {"name": "app", "scopes": ["memories:read"], "bind": {"user_id": "ana"}}
        made = await door.client.post("/v1/keys", json=body, headers=headers)
        assert made.status_code == 201, made.text
        listed = (await door.client.get("/v1/keys", headers=headers)).json()["results"]
        assert [key["id"] for key in listed] == [mine.id, made.json()["id"]]
        assert not any("key" in key for key in listed)
        path = f"/v1/keys/{made.json()['id']}"
        rotated = await door.client.post(f"{path}/rotate", json={"overlap_s": 0}, headers=headers)
        assert rotated.json()["bind"] == {"user_id": "ana", "agent_id": None}
        assert (await door.client.delete(f"/v1/keys/{rotated.json()['id']}", headers=headers)).status_code == 204
        gone = await door.client.get("/v1/whoami", headers={"X-API-Key": rotated.json()["key"]})
        assert gone.status_code == 401

    async def test_a_key_gives_nothing_that_it_does_not_have(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        strong = await make(door, tenant)
        ends = datetime.now(UTC) + timedelta(hours=1)
        weak = await make(door, tenant, scopes=["tenant:admin", "memories:read"], expires_at=ends.isoformat())
        headers = bearer_of(weak)
        wide = {"name": "k", "scopes": ["memories:read", "memories:write"]}
        long = {"name": "k", "scopes": ["memories:read"], "expires_at": (ends + timedelta(hours=1)).isoformat()}
        for path, body in (
            ("/v1/keys", wide),
            ("/v1/keys", long),
            (f"/v1/keys/{strong.id}/rotate", {}),
            (f"/v1/keys/{weak.id}/rotate", {"expires_at": None}),
        ):
            answer = await door.client.post(path, json=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), body
        assert await status_of(door.client, strong) == 200
        made = await door.client.post("/v1/keys", json={"name": "k", "scopes": ["memories:read"]}, headers=headers)
        assert datetime.fromisoformat(made.json()["expires_at"]) == ends
        rotated = await door.client.post(f"/v1/keys/{weak.id}/rotate", json={}, headers=headers)
        assert datetime.fromisoformat(rotated.json()["expires_at"]) == ends

    async def test_a_new_key_has_the_limits_of_the_one_that_made_it(self, door: Gateway, database: Database) -> None:
        tenant = await door.make_tenant()
        mine = await make(door, tenant)
        async with database.tenant(TenantId(tenant.id)) as connection:
            await connection.execute("UPDATE api_key SET limits = $2 WHERE id = $1", mine.id, {"search": None})
        made = await door.client.post(
            "/v1/keys", json={"name": "k", "scopes": ["memories:read"]}, headers=bearer_of(mine)
        )
        async with database.tenant(TenantId(tenant.id)) as connection:
            limits = await connection.fetchval("SELECT limits FROM api_key WHERE id = $1", made.json()["id"])
        assert limits == {"search": None}

    async def test_the_keys_of_another_tenant_are_out_of_reach(self, door: Gateway) -> None:
        mine, theirs = await make(door, await door.make_tenant()), await make(door, await door.make_tenant())
        listed = (await door.client.get("/v1/keys", headers=bearer_of(mine))).json()["results"]
        assert [key["id"] for key in listed] == [mine.id]
        path, headers = f"/v1/keys/{theirs.id}", bearer_of(mine)
        assert (await door.client.delete(path, headers=headers)).status_code == 404
        assert (await door.client.post(f"{path}/rotate", json={}, headers=headers)).status_code == 404
        assert (
            await door.client.get("/v1/keys", params={"cursor": theirs.id}, headers=bearer_of(mine))
        ).status_code == 422
        assert await status_of(door.client, theirs) == 200

    @pytest.mark.parametrize("scope", ["memories:read", "memories:write", "memories:admin"])
    async def test_other_scopes_keep_no_keys(self, door: Gateway, scope: str) -> None:
        key = await make(door, await door.make_tenant(), scopes=[scope])
        for method, path in (("GET", "/v1/keys"), ("GET", "/v1/policy"), ("DELETE", f"/v1/keys/{key.id}")):
            assert (await door.client.request(method, path, headers=bearer_of(key))).status_code == 403


class TestUse:
    async def test_is_remembered_soon_and_at_most_once_a_minute(self, gateway: Gateway, database: Database) -> None:
        async with gateway.embedding.running(), gateway.running():
            tenant = await gateway.make_tenant()
            used, unused = await make(gateway, tenant), await make(gateway, tenant)
            before = datetime.now(UTC)
            for _ in range(3):
                await status_of(gateway.client, used)
        # The gateway has told what it knew when it was stopped.
        async with gateway.running() as client:
            listed = (await client.get(path_of(tenant), headers=ADMIN)).json()["results"]
            first = datetime.fromisoformat(listed[0]["last_used_at"])
            assert before <= first <= datetime.now(UTC)
            assert listed[1]["id"] == unused.id
            assert listed[1]["last_used_at"] is None
        async with database.system() as connection:  # what comes late never sets a key back
            await connection.execute("SELECT mark_keys_used($1, $2)", [used.id], [first - timedelta(hours=1)])
        async with database.tenant(TenantId(tenant.id)) as connection:
            assert await connection.fetchval("SELECT last_used_at FROM api_key WHERE id = $1", used.id) == first


class TestOps:
    async def test_the_ops_key_reads_and_changes_nothing(self, gateway: Gateway) -> None:
        async with gateway.embedding.running(), gateway.running(ops_key=OPS_KEY) as client:
            tenant = await gateway.make_tenant()
            key = await make(gateway, tenant)
            for path in ("/admin/v1/tenants", f"/admin/v1/tenants/{tenant.id}", path_of(tenant)):
                assert (await client.get(path, headers=OPS)).status_code == 200
            for method, path in (
                ("POST", "/admin/v1/tenants"),
                ("POST", path_of(tenant)),
                ("DELETE", path_of(tenant, key)),
                ("POST", f"{path_of(tenant, key)}/rotate"),
                ("PATCH", f"/admin/v1/tenants/{tenant.id}/policy"),
            ):
                answer = await client.request(method, path, json={"name": "x"}, headers=OPS)
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
            assert await status_of(client, key) == 200
            assert (await client.get("/v1/whoami", headers=OPS)).status_code == 401

    async def test_without_one_nothing_stands_for_it(self, door: Gateway) -> None:
        for secret in ("", "None", OPS_KEY):
            answer = await door.client.get("/admin/v1/tenants", headers={"Authorization": f"Bearer {secret}"})
            assert answer.status_code == 401
        with pytest.raises(ValueError, match="ops_key"):
            door.settings(ops_key=ADMIN_KEY)


class TestPeppers:
    async def test_a_new_pepper_signs_and_the_old_ones_keys_stay_valid(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        old = await make(door, tenant)
        peppers = {"key_peppers": [NEW_PEPPER, PEPPER], "key_pepper": None}
        async with door.another(**peppers) as rotated:
            assert await status_of(rotated, old) == 200
            answer = await rotated.post(f"{path_of(tenant, old)}/rotate", json={}, headers=ADMIN)
            new = msgspec.json.decode(answer.content, type=KeyCreated)
        async with door.another(key_peppers=[NEW_PEPPER], key_pepper=None) as alone:
            assert [await status_of(alone, key) for key in (old, new)] == [401, 200]


class TestPolicy:
    async def test_is_the_defaults_at_first_and_then_what_was_set(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        headers = bearer_of(await make(door, tenant))
        first = (await door.client.get("/v1/policy", headers=headers)).json()
        assert (first["default_importance"], first["decay_rate"], first["require_user"]) == (0.5, 0.01, False)
        changed = await door.client.patch("/v1/policy", json={"require_user": True, "decay_rate": 0.1}, headers=headers)
        assert changed.json() == {**first, "require_user": True, "decay_rate": 0.1}
        admin = f"/admin/v1/tenants/{tenant.id}/policy"
        assert (await door.client.get(admin, headers=ADMIN)).json() == changed.json()
        back = await door.client.patch(admin, json={"decay_rate": None}, headers=ADMIN)
        assert back.json() == {**first, "require_user": True}

    async def test_can_be_like_one_that_has_a_name(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        headers = bearer_of(await make(door, tenant))
        first = (await door.client.get("/v1/policy", headers=headers)).json()

        async def change(body: dict[str, Any]) -> dict[str, Any]:
            answer = await door.client.patch("/v1/policy", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

        await change({"require_user": True, "weights": {"match": 0.5}, "maintenance": {"expired_grace_days": 3}})
        dbgpt = await change({"like": "dbgpt", "decay_rate": 0.02, "maintenance": {"merge": {"enabled": True}}})
        assert (dbgpt["preset"], dbgpt["decay_rate"], dbgpt["require_user"]) == ("dbgpt", 0.02, True)
        assert dbgpt["short_term"]["kind"] == "enhanced"
        kept = dbgpt["maintenance"]
        assert [kept[job]["enabled"] for job in ("priorities", "prune", "merge", "expire")] == [
            False,
            False,
            True,
            True,
        ]
        assert kept["expired_grace_days"] == first["maintenance"]["expired_grace_days"]
        experience = await change({"like": "experience"})
        assert experience["preset"] is None
        assert experience["weights"] == {"match": 0.8, "recency": 0.0, "importance": 0.0, "priority": 0.2}
        assert experience["maintenance"]["prune"] == {
            **first["maintenance"]["prune"],
            "enabled": True,
            "age_by": "occurred",
        }
        assert await change({"like": "memplane", "require_user": None}) == first

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({}, ""),
            ({"limits": {}}, "/limits"),
            ({"default_importance": 1.1}, "/default_importance"),
            ({"decay_rate": -0.1}, "/decay_rate"),
            ({"weights": {"match": 0, "recency": 0, "importance": 0, "priority": 0}}, "/weights"),
            ({"weights": {"match": -1}}, "/weights/match"),
            ({"weights": {"match": 1}, "preset": "dbgpt"}, "/preset"),
            ({"preset": "other"}, "/preset"),
            ({"require_user": "yes"}, "/require_user"),
            ({"like": "other"}, "/like"),
            ({"like": None}, "/like"),
            ({"like": "dbgpt", "preset": "dbgpt", "weights": {"match": 1}}, "/preset"),
            ({"context_template": {"memory": "$content $secret"}}, "/context_template/memory"),
            ({"context_template": {"header": "\0"}}, "/context_template/header"),
        ],
    )
    async def test_a_bad_change_is_refused_by_field(self, door: Gateway, body: dict[str, Any], pointer: str) -> None:
        tenant = await door.make_tenant()
        path = f"/admin/v1/tenants/{tenant.id}/policy"
        before = (await door.client.get(path, headers=ADMIN)).json()
        answer = await door.client.patch(path, json=body, headers=ADMIN)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
        assert (await door.client.get(path, headers=ADMIN)).json() == before

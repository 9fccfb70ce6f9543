"""Requests to the gateway's own write routes that carry an Idempotency-Key and are sent again."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

pytestmark = pytest.mark.anyio

KEY = {"Idempotency-Key": "k"}
REINDEX = {"kind": "reconcile"}


async def _once(door: Gateway, method: str, path: str, *, body: Any, headers: dict[str, str]) -> Any:
    """Ten at once: one does it, and all answers are equal."""
    answers = await asyncio.gather(
        *(door.client.request(method, path, json=body, headers={**headers, **KEY}) for _ in range(10))
    )
    assert len({answer.status_code for answer in answers}) == 1, [answer.text for answer in answers]
    assert len({answer.text for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    return answers[0]


class TestOnce:
    async def test_a_tenant_is_made(self, door: Gateway) -> None:
        key = {**ADMIN, "Idempotency-Key": uuid4().hex}
        body = {"name": f"t {uuid4().hex}"}
        made = [await door.client.post("/admin/v1/tenants", json=body, headers=key) for _ in range(2)]
        assert [answer.status_code for answer in made] == [201, 201]
        assert made[0].json() == made[1].json()
        assert made[1].headers["idempotency-replayed"] == "true"
        other = await door.client.post("/admin/v1/tenants", json={"name": "another"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")

    async def test_a_job_is_started_and_cancelled(self, door: Gateway) -> None:
        headers = bearer_of(await door.make_key(await door.make_tenant()))
        started = await _once(door, "POST", "/v1/jobs", body=REINDEX, headers=headers)
        assert started.status_code == 202
        assert len((await door.client.get("/v1/jobs", headers=headers)).json()["results"]) == 1
        path = f"/v1/jobs/{started.json()['id']}/cancel"
        refused = await door.client.post(path, headers={**headers, **KEY})
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
        cancelled = [await door.client.post(path, headers={**headers, "Idempotency-Key": "c"}) for _ in range(2)]
        assert [answer.status_code for answer in cancelled] == [202, 202]

    async def test_a_policy_is_changed_and_a_repeat_tells_what_holds_now(self, door: Gateway) -> None:
        headers = bearer_of(await door.make_key(await door.make_tenant()))
        await _once(door, "PATCH", "/v1/policy", body={"default_importance": 0.9}, headers=headers)
        await door.client.patch("/v1/policy", json={"default_importance": 0.2}, headers=headers)
        again = await door.client.patch("/v1/policy", json={"default_importance": 0.9}, headers={**headers, **KEY})
        assert (again.status_code, again.json()["default_importance"]) == (200, 0.2)

    async def test_limits_are_set(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        path = f"/admin/v1/tenants/{tenant.id}/limits"
        answer = await _once(door, "PATCH", path, body={"stored_memories": 7}, headers=ADMIN)
        assert (answer.status_code, answer.json()["limits"]["stored_memories"]) == (200, 7)

    async def test_a_key_is_made_and_revoked(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        path = f"/admin/v1/tenants/{tenant.id}/keys"
        body = {"name": "one", "scopes": ["memories:read"]}
        answers = await asyncio.gather(
            *(door.client.post(path, json=body, headers={**ADMIN, **KEY}) for _ in range(10))
        )
        [made] = [answer for answer in answers if answer.status_code == 201]
        repeats = [answer for answer in answers if answer.status_code == 409]
        # The secret is nowhere to be had again; the id is, so that the key can be revoked.
        assert {answer.json()["id"] for answer in repeats} == {made.json()["id"]}
        assert len(repeats) == 9
        assert len((await door.client.get(path, headers=ADMIN)).json()["results"]) == 1
        revoke = f"{path}/{made.json()['id']}"
        gone = [await door.client.delete(revoke, headers={**ADMIN, "Idempotency-Key": "d"}) for _ in range(2)]
        assert [(answer.status_code, answer.content) for answer in gone] == [(204, b"")] * 2
        assert gone[1].headers["idempotency-replayed"] == "true"


class TestApart:
    async def test_the_operators_keys_and_the_tenants_never_meet(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        headers = bearer_of(await door.make_key(tenant))
        mine = await door.client.patch("/v1/policy", json={"default_importance": 0.9}, headers={**headers, **KEY})
        theirs = await door.client.patch(
            f"/admin/v1/tenants/{tenant.id}/policy", json={"default_importance": 0.1}, headers={**ADMIN, **KEY}
        )
        assert (mine.status_code, theirs.status_code) == (200, 200)
        assert "idempotency-replayed" not in theirs.headers

    async def test_a_key_that_was_used_on_another_id_is_refused(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        one, two = await door.make_key(tenant), await door.make_key(tenant)
        headers = {**bearer_of(await door.make_key(tenant)), **KEY}
        assert (await door.client.delete(f"/v1/keys/{one.id}", headers=headers)).status_code == 204
        refused = await door.client.delete(f"/v1/keys/{two.id}", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
        assert (await door.client.get("/v1/whoami", headers=bearer_of(two))).status_code == 200

    @pytest.mark.parametrize("name", ["a%00b", "%E2%82%AC"])
    async def test_a_path_that_names_no_id_is_not_found(self, door: Gateway, name: str) -> None:
        tenant = await door.make_tenant()
        key = f"/admin/v1/tenants/{tenant.id}/keys/{name}"
        for method, path, body in (
            ("DELETE", key, None),
            ("GET", f"{key}/limits", None),
            ("PUT", f"{key}/limits", {"body_bytes": 4096}),
            ("PATCH", f"{key}/limits", {"body_bytes": 4096}),
        ):
            answer = await door.client.request(method, path, json=body, headers={**ADMIN, **KEY})
            assert answer.status_code == 404, (method, path)

    @pytest.mark.parametrize("key", [" ", "x" * 256])
    async def test_a_key_that_is_none_is_refused(self, door: Gateway, key: str) -> None:
        headers = {**bearer_of(await door.make_key(await door.make_tenant())), "Idempotency-Key": key}
        answer = await door.client.patch("/v1/policy", json={"default_importance": 0.9}, headers=headers)
        assert answer.status_code == 422

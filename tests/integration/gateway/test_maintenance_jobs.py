"""Asking for maintenance, and saying in the policy how it goes by itself."""

from typing import Any

import pytest
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

from memplane_core.contracts.admin import TenantView

pytestmark = pytest.mark.anyio


async def start(door: Gateway, tenant: TenantView, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await door.client.post(f"/admin/v1/tenants/{tenant.id}/jobs", json=body, headers=ADMIN)
    return answer.status_code, answer.json()


async def set_policy(door: Gateway, tenant: TenantView, maintenance: Any) -> dict[str, Any]:
    path = f"/admin/v1/tenants/{tenant.id}/policy"
    answer = await door.client.patch(path, json={"maintenance": maintenance}, headers=ADMIN)
    return {"status": answer.status_code, **answer.json()}


class TestStarting:
    async def test_what_is_left_out_is_the_policys(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        policy = {
            "expired_grace_days": 3,
            "prune": {"max_idle_days": 90, "age_by": "occurred"},
            "priorities": {"feedback_weight": 2},
        }
        assert (await set_policy(door, tenant, policy))["status"] == 200
        params = {
            kind: (await start(door, tenant, kind=kind, **more))[1]["params"]
            for kind, more in (("prune", {"max_priority": 1}), ("priorities", {}), ("expire", {}), ("purge", {}))
        }
        rules = {"age_by": "occurred", "max_idle_days": 90, "max_priority": 1, "grace_days": 30}
        assert params == {
            "prune": {"rules": rules, "as_of": None},
            "priorities": {"thresholds": [-3.25, -2.5, -0.75, -0.25], "feedback_weight": 2, "as_of": None},
            "expire": {"grace_days": 3, "as_of": None},
            "purge": {"as_of": None},
        }

    async def test_one_of_a_kind_at_a_time(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        _, first = await start(door, tenant, kind="prune", dry_run=True, as_of="2030-01-01T00:00:00+02:00")
        assert first["params"]["as_of"] == "2029-12-31T22:00:00Z"
        status, problem = await start(door, tenant, kind="prune")
        assert (status, problem["id"]) == (409, first["id"])
        assert (await start(door, tenant, kind="purge"))[0] == 202

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"kind": "prune", "as_of": "2030-01-01T00:00:00Z"}, "/as_of"),
            ({"kind": "purge", "dry_run": True, "as_of": "2030-01-01T00:00:00"}, "/as_of"),
            ({"kind": "purge", "dry_run": True, "as_of": "0001-01-01T00:00:00Z"}, "/as_of"),
            ({"kind": "purge", "dry_run": True, "as_of": "9999-12-31T23:00:00Z"}, "/as_of"),
            ({"kind": "prune", "max_idle_days": 0}, "/max_idle_days"),
            ({"kind": "prune", "max_priority": 6}, "/max_priority"),
            ({"kind": "prune", "age_by": "created"}, "/age_by"),
            ({"kind": "prune", "grace_days": -1}, "/grace_days"),
            ({"kind": "prune", "thresholds": [1, 2, 3, 4]}, "/thresholds"),
            ({"kind": "priorities", "thresholds": [1, 2, 3]}, "/thresholds"),
            ({"kind": "priorities", "thresholds": [1, 2, 2, 3]}, "/thresholds"),
            ({"kind": "priorities", "feedback_weight": -1}, "/feedback_weight"),
            ({"kind": "expire", "grace_days": 1.5}, "/grace_days"),
            ({"kind": "forget"}, "/kind"),
        ],
    )
    async def test_what_makes_no_sense_is_refused_by_field(
        self, door: Gateway, body: dict[str, Any], pointer: str
    ) -> None:
        status, problem = await start(door, await door.make_tenant(), **body)
        assert (status, problem["errors"][0]["pointer"]) == (422, pointer)

    async def test_takes_a_key_that_may_administer_memories(self, door: Gateway) -> None:
        key = await door.make_key(await door.make_tenant(), "memories:write", "tenant:admin")
        answer = await door.client.post("/v1/jobs", json={"kind": "prune"}, headers=bearer_of(key))
        assert answer.status_code == 403


class TestPolicy:
    async def test_says_what_an_owner_dares_at_first(self, door: Gateway) -> None:
        path = f"/admin/v1/tenants/{(await door.make_tenant()).id}/policy"
        policy: dict[str, Any] = (await door.client.get(path, headers=ADMIN)).json()["maintenance"]
        on: dict[str, bool] = {kind: rules["enabled"] for kind, rules in policy.items() if not kind.endswith("_days")}
        assert on == {
            "priorities": True,
            "expire": True,
            "purge": True,
            "prune": False,
            "merge": False,
            "reflect": False,
        }
        assert (policy["forget_grace_days"], policy["expired_grace_days"]) == (30, 30)

    async def test_what_is_not_named_stays_and_null_is_the_default(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        first = await set_policy(door, tenant, {"forget_grace_days": 7, "purge": {"every_hours": 1}})
        second = await set_policy(door, tenant, {"prune": {"enabled": True, "max_idle_days": 90}})
        assert second["maintenance"] == {
            **first["maintenance"],
            "prune": {**first["maintenance"]["prune"], "enabled": True, "max_idle_days": 90},
        }
        third = await set_policy(door, tenant, {"forget_grace_days": None, "prune": None})
        assert third["maintenance"] == {**first["maintenance"], "forget_grace_days": 30}
        assert (await set_policy(door, tenant, None))["maintenance"]["purge"]["every_hours"] == 24

    @pytest.mark.parametrize(
        ("maintenance", "pointer"),
        [
            ({}, ""),
            ({"forget_grace_days": -1}, "/maintenance/forget_grace_days"),
            ({"prune": {"max_priority": 0}}, "/maintenance/prune/max_priority"),
            ({"prune": {"older": 1}}, "/maintenance/prune/older"),
            ({"purge": {"every_hours": 0}}, "/maintenance/purge/every_hours"),
            ({"priorities": {"thresholds": [4, 3, 2, 1]}}, "/maintenance/priorities/thresholds"),
            ({"compact": {}}, "/maintenance/compact"),
        ],
    )
    async def test_a_bad_change_is_refused_by_field(self, door: Gateway, maintenance: Any, pointer: str) -> None:
        answer = await set_policy(door, await door.make_tenant(), maintenance)
        assert (answer["status"], answer["errors"][0]["pointer"]) == (422, pointer)

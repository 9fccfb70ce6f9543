"""Asking for a reflection, with a language model and without."""

from typing import Any

import pytest
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

pytestmark = pytest.mark.anyio


async def start(door: Gateway, **body: Any) -> tuple[int, dict[str, Any]]:
    key = await door.make_key(await door.make_tenant())
    answer = await door.client.post("/v1/jobs", json={"kind": "reflect", **body}, headers=bearer_of(key))
    return answer.status_code, answer.json()


class TestWithoutAModel:
    @pytest.mark.parametrize("dry_run", [True, False])
    async def test_it_says_how_to_configure_one(self, door: Gateway, dry_run: bool) -> None:
        status, problem = await start(door, dry_run=dry_run)
        assert (status, problem["code"]) == (409, "no_language_model")
        assert "MEMPLANE_LLM__URL" in problem["detail"]
        assert "MEMPLANE_LLM__MODEL" in problem["detail"]


class TestWithAModel:
    @pytest.fixture(autouse=True)
    def model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the gateway starts. Nobody asks it here."""
        monkeypatch.setenv("MEMPLANE_LLM__URL", "http://127.0.0.1:9/v1")
        monkeypatch.setenv("MEMPLANE_LLM__MODEL", "none")

    async def test_what_is_left_out_is_the_policys(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        policy = {"importance_scorer": "llm", "maintenance": {"reflect": {"threshold": 7, "max_insights": 2}}}
        path = f"/admin/v1/tenants/{tenant.id}"
        assert (await door.client.patch(f"{path}/policy", json=policy, headers=ADMIN)).status_code == 200
        body = {"kind": "reflect", "max_insights": 3}
        started = await door.client.post(f"{path}/jobs", json=body, headers=ADMIN)
        assert started.status_code == 202, started.text
        assert started.json()["params"] == {"threshold": 7, "max_memories": 100, "max_insights": 3}

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"threshold": 0}, "/threshold"),
            ({"max_memories": 501}, "/max_memories"),
            ({"max_insights": 0}, "/max_insights"),
            ({"model": "x"}, "/model"),
        ],
    )
    async def test_what_makes_no_sense_is_refused_by_field(
        self, door: Gateway, body: dict[str, Any], pointer: str
    ) -> None:
        status, problem = await start(door, **body)
        assert (status, problem["errors"][0]["pointer"]) == (422, pointer)

    async def test_an_unknown_scorer_is_refused(self, door: Gateway) -> None:
        path = f"/admin/v1/tenants/{(await door.make_tenant()).id}/policy"
        refused = await door.client.patch(path, json={"importance_scorer": "dice"}, headers=ADMIN)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/importance_scorer")

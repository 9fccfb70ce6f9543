"""Jobs and generations through the public and the admin routes, over a real Postgres and without a worker."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from dirty_equals import IsDatetime, IsUUID
from httpx2 import Response
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

from memplane_core.contracts.admin import TenantView
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import generations
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio


def fault(answer: Response) -> str:
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"][0]["pointer"]


async def keep_another(database: Database, tenant: TenantView) -> None:
    """Let the tenant have gone on to a second generation."""
    own = TenantId(tenant.id)
    new = generations.NewGeneration(model="other", dim=8, index_type="AUTOINDEX", index_params={})
    async with database.tenant(own) as connection:
        await generations.add_generation(own, connection, new, made_by=uuid4())
        assert await generations.activate(own, connection, 2, grace_s=3600)


class TestStarting:
    async def test_a_reindex_is_queued_with_all_that_was_left_out(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant, "memories:admin")
        started = await door.client.post("/v1/jobs", json={"kind": "reindex"}, headers=bearer_of(key))
        assert started.status_code == 202
        job = started.json()
        assert job == {
            "id": IsUUID(),
            "kind": "reindex",
            "state": "queued",
            "dry_run": False,
            "cancel_asked": False,
            "params": {
                "model": "test-model",
                "dim": 24,
                "index_type": "HNSW",
                "index_params": {"M": 32, "efConstruction": 400},
                "reembed": False,
                "to_generation": None,
                "grace_s": 604_800,
            },
            "progress": {"done": 0, "total": None},
            "result": {},
            "sample": [],
            "error": None,
            "started_by": key.id,
            "created_at": IsDatetime(iso_string=True),
            "started_at": None,
            "finished_at": None,
        }
        assert started.headers["location"] == f"/v1/jobs/{job['id']}"
        assert (await door.client.get(started.headers["location"], headers=bearer_of(key))).json() == job

    async def test_what_is_asked_for_is_kept(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        body: dict[str, Any] = {
            "kind": "reindex",
            "model": "other",
            "index_type": "HNSW",
            "index_params": {"M": 32},
            "grace_s": 60,
            "dry_run": True,
        }
        path = f"/admin/v1/tenants/{tenant.id}/jobs"
        started = await door.client.post(path, json=body, headers=ADMIN)
        job = started.json()
        assert (job["started_by"], job["dry_run"]) == ("admin", True)
        assert job["params"] == {
            "model": "other",
            "dim": 8,
            "index_type": "HNSW",
            "index_params": {"M": 32, "efConstruction": 400},
            "reembed": False,
            "to_generation": None,
            "grace_s": 60,
        }
        assert started.headers["location"] == f"{path}/{job['id']}"
        assert (await door.client.get(started.headers["location"], headers=ADMIN)).json() == job

    async def test_a_reconcile_takes_nothing_but_whether_it_is_dry(self, door: Gateway) -> None:
        key = await door.make_key(await door.make_tenant())
        body = {"kind": "reconcile", "dry_run": True}
        started = await door.client.post("/v1/jobs", json=body, headers=bearer_of(key))
        job = started.json()
        assert (started.status_code, job["kind"], job["dry_run"], job["params"]) == (202, "reconcile", True, {})
        listed = await door.client.get("/v1/jobs", params={"kind": "reconcile"}, headers=bearer_of(key))
        assert [one["id"] for one in listed.json()["results"]] == [job["id"]]

    async def test_one_run_of_a_kind_at_a_time(self, door: Gateway) -> None:
        key = await door.make_key(await door.make_tenant())
        first = await door.client.post("/v1/jobs", json={"kind": "reindex"}, headers=bearer_of(key))
        again = await door.client.post("/v1/jobs", json={"kind": "reindex"}, headers=bearer_of(key))
        assert (again.status_code, again.json()["code"], again.json()["id"]) == (409, "conflict", first.json()["id"])

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({}, "/kind"),
            ({"kind": "tidy"}, "/kind"),
            ({"kind": "reindex", "speed": 1}, "/speed"),
            ({"kind": "reconcile", "model": "other"}, "/model"),
            ({"kind": "reindex", "model": "unheard-of"}, "/model"),
            ({"kind": "reindex", "model": ""}, "/model"),
            ({"kind": "reindex", "index_type": "FLAT"}, "/index_type"),
            ({"kind": "reindex", "index_params": {"nlist": 3}}, "/index_params"),
            ({"kind": "reindex", "index_type": "IVF_FLAT", "index_params": {"nlist": 0}}, "/index_params"),
            ({"kind": "reindex", "index_params": {"M": "16"}}, "/index_params/*"),
            ({"kind": "reindex", "grace_s": 1}, "/grace_s"),
            ({"kind": "reindex", "to_generation": 2}, "/to_generation"),
            ({"kind": "reindex", "to_generation": 0}, "/to_generation"),
            ({"kind": "reindex", "to_generation": 1, "model": "other"}, "/model"),
        ],
    )
    async def test_what_cannot_be_done_is_refused_by_field(
        self, door: Gateway, body: dict[str, Any], pointer: str
    ) -> None:
        key = await door.make_key(await door.make_tenant())
        assert fault(await door.client.post("/v1/jobs", json=body, headers=bearer_of(key))) == pointer

    async def test_every_route_needs_the_scope_of_an_administrator(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant, "memories:read", "memories:write", "tenant:admin")
        for refused in (
            await door.client.post("/v1/jobs", json={"kind": "reindex"}, headers=bearer_of(key)),
            await door.client.get("/v1/jobs", headers=bearer_of(key)),
            await door.client.get(f"/v1/jobs/{uuid4()}", headers=bearer_of(key)),
            await door.client.post(f"/v1/jobs/{uuid4()}/cancel", headers=bearer_of(key)),
        ):
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")

    async def test_nothing_of_another_tenant_is_seen(self, door: Gateway) -> None:
        mine, other = await door.make_tenant(), await door.make_tenant()
        key, others = await door.make_key(mine), await door.make_key(other)
        job = (await door.client.post("/v1/jobs", json={"kind": "reindex"}, headers=bearer_of(key))).json()
        for answer in (
            await door.client.get(f"/v1/jobs/{job['id']}", headers=bearer_of(others)),
            await door.client.post(f"/v1/jobs/{job['id']}/cancel", headers=bearer_of(others)),
            await door.client.get(f"/admin/v1/tenants/{other.id}/jobs/{job['id']}", headers=ADMIN),
            await door.client.get(f"/admin/v1/tenants/{uuid4()}/jobs", headers=ADMIN),
            await door.client.post(f"/admin/v1/tenants/{uuid4()}/jobs", json={"kind": "reindex"}, headers=ADMIN),
            await door.client.get(f"/admin/v1/tenants/{uuid4()}/generations", headers=ADMIN),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert (await door.client.get("/v1/jobs", headers=bearer_of(others))).json()["results"] == []


class TestEnding:
    async def test_a_cancelled_job_makes_room_for_the_next_and_runs_are_listed_newest_first(
        self, door: Gateway
    ) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant)
        made: list[str] = []
        for _ in range(3):
            job = (await door.client.post("/v1/jobs", json={"kind": "reindex"}, headers=bearer_of(key))).json()
            cancelled = await door.client.post(f"/v1/jobs/{job['id']}/cancel", headers=bearer_of(key))
            assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
            made.append(job["id"])
        again = await door.client.post(f"/v1/jobs/{made[0]}/cancel", headers=bearer_of(key))
        assert (again.status_code, again.json()["state"]) == (202, "cancelled")
        first = (await door.client.get("/v1/jobs?limit=2&kind=reindex", headers=bearer_of(key))).json()
        path = f"/admin/v1/tenants/{tenant.id}/jobs?limit=2&cursor={first['next_cursor']}"
        rest = (await door.client.get(path, headers=ADMIN)).json()
        assert [job["id"] for job in first["results"] + rest["results"]] == made[::-1]
        assert rest["next_cursor"] is None
        assert (await door.client.get("/v1/jobs?kind=other", headers=bearer_of(key))).json()["results"] == []
        assert fault(await door.client.get("/v1/jobs?cursor=x", headers=bearer_of(key))) == "cursor"
        assert fault(await door.client.get("/v1/jobs?page=2", headers=bearer_of(key))) == "page"

    async def test_one_that_is_done_cannot_be_cancelled(self, door: Gateway, database: Database) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant)
        job = (await door.client.post("/v1/jobs", json={"kind": "reindex"}, headers=bearer_of(key))).json()
        async with database.tenant(TenantId(tenant.id)) as connection:
            await connection.execute("UPDATE job SET state = 'done' WHERE id = $1", UUID(job["id"]))
        refused = await door.client.post(f"/admin/v1/tenants/{tenant.id}/jobs/{job['id']}/cancel", headers=ADMIN)
        assert (refused.status_code, refused.json()["detail"]) == (409, "the job has ended: it is done")


class TestGenerations:
    async def test_the_first_one_is_shown_as_it_was_made(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        listed = await door.client.get(f"/admin/v1/tenants/{tenant.id}/generations", headers=ADMIN)
        assert listed.json() == {
            "results": [
                {
                    "number": 1,
                    "state": "active",
                    "model": "test-model",
                    "dim": 24,
                    "index_type": "HNSW",
                    "index_params": {"M": 32, "efConstruction": 400},
                    "collection": f"mp_{tenant.id.hex}_g1",
                    "indexed": False,
                    "chunks": 0,
                    "embedded": 0,
                    "pending": 0,
                    "failed": 0,
                    "removals": 0,
                    "lag_s": 0,
                    "created_at": IsDatetime(iso_string=True),
                    "drop_at": None,
                }
            ]
        }

    async def test_one_that_is_kept_can_be_gone_back_to(self, door: Gateway, database: Database) -> None:
        tenant = await door.make_tenant()
        await keep_another(database, tenant)
        path = f"/admin/v1/tenants/{tenant.id}"
        listed = (await door.client.get(f"{path}/generations", headers=ADMIN)).json()["results"]
        assert [(one["number"], one["state"], one["drop_at"] is None) for one in listed] == [
            (1, "kept", False),
            (2, "active", True),
        ]
        started = await door.client.post(f"{path}/generations/1/activate", json={"grace_s": 60}, headers=ADMIN)
        assert started.status_code == 202
        params = started.json()["params"]
        assert (params["to_generation"], params["model"], params["dim"], params["grace_s"]) == (1, "test-model", 24, 60)
        assert started.headers["location"] == f"{path}/jobs/{started.json()['id']}"
        again = await door.client.post(f"{path}/generations/3/activate", json={}, headers=ADMIN)
        assert fault(again) == "/to_generation"

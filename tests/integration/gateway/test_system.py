"""What the operator is told of the installation, with parts away and back."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from aiohttp import web
from redis.asyncio import Redis
from tests.integration.gateway.conftest import ADMIN, Gateway, Respond

from memplane_core.clients.reports import ReportBoard
from memplane_core.contracts.system import Health, PartState, SystemView, WorkerReport
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk

pytestmark = pytest.mark.anyio


async def look(door: Gateway) -> SystemView:
    answer = await door.client.get("/admin/v1/system", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=SystemView)


def states(view: SystemView) -> dict[str, str]:
    return {part.name: part.status for part in view.parts}


def saying(status: str, **parts: str) -> Respond:
    async def respond(_: web.Request) -> web.Response:
        body = msgspec.json.encode(Health(status, parts))
        return web.Response(status=503 if status == "unavailable" else 200, body=body)

    return respond


async def tell(door: Gateway, parts: dict[str, PartState], *, at: float) -> None:
    client = cast("Any", Redis).from_url(door.valkey.url, protocol=3)
    report = WorkerReport(worker="w1", at=at, parts=parts, queues={"index": 3, "maintenance": 0}, access_s=1.5)
    await ReportBoard(client).put(report)
    await client.aclose()


ALL_OK: dict[str, PartState] = {"postgres": "ok", "index": "ok", "broker": "ok", "cache": "ok", "beat": "ok"}


class TestTheWholeInstallation:
    async def test_with_every_part_there_it_is_ok_and_needs_no_advice(self, door: Gateway) -> None:
        door.retrieval.respond = saying("ok", postgres="ok", index="ok", embedding="ok", cache="ok")
        door.embedding.respond = saying("ok", model="ok")
        await tell(door, ALL_OK, at=time.time())
        view = await look(door)
        assert (view.status, set(states(view).values())) == ("ok", {"ok"}), view
        assert [part.advice for part in view.parts if part.advice] == []
        assert [(queue.name, queue.waiting) for queue in view.queues] == [("index", 3), ("maintenance", 0)]
        assert [(worker.id, worker.access_s) for worker in view.workers] == [("w1", 1.5)]

    async def test_milvus_away_is_told_by_those_who_need_it_and_only_degrades(self, door: Gateway) -> None:
        door.retrieval.respond = saying("degraded", postgres="ok", index="unavailable", embedding="ok", cache="ok")
        door.embedding.respond = saying("ok", model="ok")
        away: PartState = "unavailable"
        await tell(door, {**ALL_OK, "index": away}, at=time.time())
        view = await look(door)
        assert view.status == "degraded"
        (index,) = [part for part in view.parts if part.status != "ok"]
        assert (index.name, index.seen_by) == ("index", {"retrieval": "unavailable", "worker": "unavailable"})
        assert "Milvus" in (index.advice or "")

    async def test_without_a_worker_what_it_alone_sees_is_unknown(self, door: Gateway) -> None:
        door.retrieval.respond = saying("ok", postgres="ok", index="ok", embedding="ok", cache="ok")
        door.embedding.respond = saying("ok", model="ok")
        await tell(door, ALL_OK, at=time.time() - 60)
        view = await look(door)
        found = states(view)
        assert (found["worker"], found["beat"], found["broker"]) == ("unavailable", "unknown", "unknown")
        assert (found["index"], view.status, view.workers) == ("ok", "degraded", [])

    async def test_with_postgres_and_all_services_away_it_still_answers(self, door: Gateway) -> None:
        async with door.without_postgres() as client:
            answer = await client.get("/admin/v1/system", headers=ADMIN)
        assert answer.status_code == 200
        view = msgspec.json.decode(answer.content, type=SystemView)
        found = states(view)
        assert view.status == "unavailable"
        assert [name for name in ("retrieval", "embedding", "postgres") if found[name] == "ok"] == []
        assert (view.index, view.generations, view.jobs, view.expiring_keys) == (None, None, None, None)

    async def test_tells_how_far_the_index_is_behind_and_which_keys_end_soon(
        self, door: Gateway, database: Database
    ) -> None:
        tenant = await door.make_tenant()
        desk = MemoryDesk(database, TenantId(UUID(int=tenant.id.int)), HashEmbedder(dim=24, models=("test-model",)))
        before = await look(door)
        await desk.write("The harbour lies to the north.", "The mill stands by the river.")
        async with database.tenant(desk.tenant) as connection:  # before all that other tests leave waiting
            await connection.execute("UPDATE outbox SET created_at = '2001-01-01Z' WHERE tenant_id = $1", desk.tenant)
        soon = datetime.now(UTC) + timedelta(minutes=3)
        body = {"name": "short", "scopes": ["memories:read"], "expires_at": soon.isoformat()}
        made = await door.client.post(f"/admin/v1/tenants/{tenant.id}/keys", json=body, headers=ADMIN)
        view = await look(door)
        assert before.index is not None
        assert view.index is not None
        assert view.index.pending == before.index.pending + 2
        assert [lag.pending for lag in view.index.behind if lag.tenant_id == tenant.id] == [2]
        assert view.index.lag_s >= max(lag.oldest_s for lag in view.index.behind)
        assert view.generations is not None
        assert view.generations.active >= 1
        assert [key.id for key in view.expiring_keys or () if key.tenant_id == tenant.id] == [made.json()["id"]]

    async def test_no_key_of_a_tenant_opens_it_and_the_operators_reading_key_does(self, door: Gateway) -> None:
        tenant = await door.make_tenant()
        key = await door.make_key(tenant)
        ops = "ops key of the tests, which is long enough"
        async with door.another(ops_key=ops) as client:
            for secret, status in ((key.key, 401), (ops, 200)):
                headers = {"Authorization": f"Bearer {secret}"}
                assert (await client.get("/admin/v1/system", headers=headers)).status_code == status

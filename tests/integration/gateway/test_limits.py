"""Limits as callers meet them: rates over a real Valkey, sizes, and the routes that set them."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tests.integration.gateway.conftest import ADMIN, Gateway, bearer_of

from memplane_core.contracts.admin import KeyCreated, TenantView
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.valkey import ValkeyServer

pytestmark = pytest.mark.anyio

NONE = ('"unlimited";q=999999999999999', '"unlimited";r=999999999999999')


def rates(answer: httpx2.Response) -> tuple[str, str]:
    return answer.headers["RateLimit-Policy"], answer.headers["RateLimit"]


async def limit(door: Gateway, tenant: TenantView, **limits: Any) -> None:
    answer = await door.client.put(f"/admin/v1/tenants/{tenant.id}/limits", json=limits, headers=ADMIN)
    assert answer.status_code == 200, answer.text


async def limit_key(door: Gateway, tenant: TenantView, key: KeyCreated, **limits: Any) -> None:
    path = f"/admin/v1/tenants/{tenant.id}/keys/{key.id}/limits"
    answer = await door.client.put(path, json=limits, headers=ADMIN)
    assert answer.status_code == 200, answer.text


@pytest.fixture
async def tenant(door: Gateway) -> TenantView:
    door.retrieval.respond = door.answering(200, b"{}")
    return await door.make_tenant()


@pytest.fixture
async def key(door: Gateway, tenant: TenantView) -> KeyCreated:
    return await door.make_key(tenant)


async def whoami(door: Gateway, key: KeyCreated) -> httpx2.Response:
    return await door.client.get("/v1/whoami", headers=bearer_of(key))


class TestHeaders:
    async def test_no_limit_has_a_policy_of_its_own_on_every_answer(self, door: Gateway, key: KeyCreated) -> None:
        assert rates(await whoami(door, key)) == NONE
        for method, path, headers in (
            ("GET", "/nowhere", {}),
            ("GET", "/v1/whoami", {}),
            ("GET", "/healthz", {}),
            ("GET", "/admin/v1/tenants", ADMIN),
            ("PUT", "/v1/whoami", bearer_of(key)),
        ):
            assert rates(await door.client.request(method, path, headers=headers)) == NONE

    async def test_limits_of_tenant_and_key_are_told_together(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit(door, tenant, search={"requests": 5, "seconds": 60})
        await limit_key(door, tenant, key, search={"requests": 3, "seconds": 600})
        policy, standing = rates(await whoami(door, key))
        assert policy == '"tenant-search";q=5;w=60, "key-search";q=3;w=600'
        assert standing == '"tenant-search";r=4;t=60, "key-search";r=2;t=600'

    async def test_errors_carry_them_too(self, door: Gateway, tenant: TenantView, key: KeyCreated) -> None:
        await limit(door, tenant, write={"requests": 5, "seconds": 60})
        answer = await door.client.post("/v1/memories", json={"content": 3}, headers=bearer_of(key))
        assert (answer.status_code, rates(answer)) == (
            422, ('"tenant-write";q=5;w=60', '"tenant-write";r=4;t=60'),
        )  # fmt: skip


class TestRates:
    async def test_one_too_many_is_a_429_that_says_when_to_come_back(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit(door, tenant, search={"requests": 2, "seconds": 30})
        assert [(await whoami(door, key)).status_code for _ in range(2)] == [200, 200]
        refused = await whoami(door, key)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert 25 <= int(refused.headers["Retry-After"]) <= 30
        assert refused.headers["RateLimit"].startswith('"tenant-search";r=0;t=')

    async def test_after_the_time_it_names_a_request_is_let_in_again(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit(door, tenant, search={"requests": 1, "seconds": 1})
        assert (await whoami(door, key)).status_code == 200
        refused = await whoami(door, key)
        if refused.status_code == 429:  # else a second had passed already
            await asyncio.sleep(int(refused.headers["Retry-After"]))
            assert (await whoami(door, key)).status_code == 200

    async def test_a_class_has_a_window_of_its_own_and_no_body_is_read_for_a_refusal(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit(door, tenant, write={"requests": 1, "seconds": 60})
        headers = {**bearer_of(key), "Content-Type": "application/json"}
        statuses = [
            (await door.client.post("/v1/memories", content=body, headers=headers)).status_code
            for body in (b'{"content": "x"}', b"no json at all")
        ]
        assert statuses == [200, 429]
        assert (await whoami(door, key)).status_code == 200

    async def test_what_a_key_may_not_do_costs_its_neighbours_nothing(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        other = await door.make_key(tenant)
        await limit(door, tenant, search={"requests": 3, "seconds": 60})
        await limit_key(door, tenant, key, search={"requests": 1, "seconds": 60})
        assert [(await whoami(door, key)).status_code for _ in range(6)] == [200, *[429] * 5]
        assert [(await whoami(door, other)).status_code for _ in range(3)] == [200, 200, 429]

    async def test_another_tenant_is_not_touched(self, door: Gateway, tenant: TenantView, key: KeyCreated) -> None:
        await limit(door, tenant, search={"requests": 1, "seconds": 60})
        stranger = await door.make_key(await door.make_tenant())
        assert [(await whoami(door, key)).status_code for _ in range(2)] == [200, 429]
        assert rates(await whoami(door, stranger)) == NONE

    async def test_three_gateways_let_exactly_as_many_in_as_one(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit(door, tenant, search={"requests": 100, "seconds": 600})
        env = door.environment()
        with ExitStack() as processes:
            gateways = [
                processes.enter_context(ServiceProcess("memplane_gateway", env=env, ready_path="/healthz"))
                for _ in range(3)
            ]
            async with AsyncExitStack() as clients:
                doors = [await clients.enter_async_context(door.talking_to(its.url)) for its in gateways]
                statuses = await _flood(doors, bearer_of(key), requests=300)
        assert (statuses.count(200), statuses.count(429)) == (100, 200)


async def _flood(doors: list[httpx2.AsyncClient], headers: dict[str, str], *, requests: int) -> list[int]:
    async def run(client: httpx2.AsyncClient, times: int) -> list[int]:
        return [(await client.get("/v1/whoami", headers=headers, timeout=60)).status_code for _ in range(times)]

    lines = 10
    found = await asyncio.gather(
        *(run(client, requests // len(doors) // lines) for client in doors for _ in range(lines))
    )
    return [status for line in found for status in line]


@asynccontextmanager
async def _own_valkey(gateway: Gateway) -> AsyncGenerator[ValkeyServer]:
    """The gateway running over a Valkey that may be stopped."""
    with ValkeyServer() as server:
        gateway.valkey = server
        gateway.retrieval.respond = gateway.answering(200, b"{}")
        async with gateway.embedding.running(), gateway.retrieval.running(), gateway.running():
            yield server


class TestWithoutValkey:
    async def test_a_dead_one_lets_all_through_and_a_new_one_counts_again(self, gateway: Gateway) -> None:
        async with _own_valkey(gateway) as server:
            tenant = await gateway.make_tenant()
            key = await gateway.make_key(tenant)
            await limit(gateway, tenant, search={"requests": 1, "seconds": 600})
            assert [(await whoami(gateway, key)).status_code for _ in range(2)] == [200, 429]
            server.kill()
            for _ in range(5):
                answer = await whoami(gateway, key)
                assert (answer.status_code, rates(answer)) == (
                    200, ('"tenant-search";q=1;w=600', '"tenant-search";r=1;t=0'),
                )  # fmt: skip
            server.start()
            deadline = time.monotonic() + 20
            while (await whoami(gateway, key)).status_code != 429:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    async def test_one_that_hangs_is_waited_for_once(self, gateway: Gateway) -> None:
        gateway.limits = {"timeout_s": 1.0}
        async with _own_valkey(gateway) as server:
            tenant = await gateway.make_tenant()
            key = await gateway.make_key(tenant)
            await limit(gateway, tenant, search={"requests": 1, "seconds": 600})
            assert (await whoami(gateway, key)).status_code == 200
            server.signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                statuses = [(await whoami(gateway, key)).status_code for _ in range(20)]
                took_s = time.monotonic() - began
            finally:
                server.signal(signal.SIGCONT)
            assert statuses == [200] * 20
            assert took_s < 10  # twenty waits would be twenty seconds


class TestSizes:
    async def test_a_longer_body_than_allowed_is_refused_unread(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit(door, tenant, body_bytes=2048)
        for content, status in (("x" * 1500, 200), ("x" * 2100, 413)):
            answer = await door.client.post("/v1/memories", json={"content": content}, headers=bearer_of(key))
            assert answer.status_code == status

    async def test_a_body_without_a_length_is_counted_as_it_comes(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit_key(door, tenant, key, body_bytes=1024)

        async def parts() -> AsyncGenerator[bytes]:
            yield b'{"content": "'
            for _ in range(8):
                yield b"x" * 200
            yield b'"}'

        headers = {**bearer_of(key), "Content-Type": "application/json"}
        answer = await door.client.post("/v1/memories", content=parts(), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        assert door.retrieval.received == []

    async def test_a_batch_has_no_more_memories_than_the_stricter_of_both_allows(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        await limit(door, tenant, batch_items=3)
        await limit_key(door, tenant, key, batch_items=2)
        memories = [{"content": str(n)} for n in range(3)]
        answer = await door.client.post("/v1/memories/batch", json={"memories": memories}, headers=bearer_of(key))
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/memories")
        answer = await door.client.post("/v1/memories/batch", json={"memories": memories[:2]}, headers=bearer_of(key))
        assert answer.status_code == 200


class TestSettingThem:
    async def test_put_replaces_and_patch_keeps_what_it_does_not_name(self, door: Gateway, tenant: TenantView) -> None:
        path = f"/admin/v1/tenants/{tenant.id}/limits"
        put = await door.client.put(path, json={"tokens_a_day": 7, "write": {"requests": 9}}, headers=ADMIN)
        assert put.json()["limits"] == {"tokens_a_day": 7, "write": {"requests": 9, "seconds": 1}}
        patched = await door.client.patch(path, json={"stored_memories": "unlimited", "write": None}, headers=ADMIN)
        assert patched.json()["limits"] == {"tokens_a_day": 7, "stored_memories": "unlimited"}
        assert (await door.client.get(path, headers=ADMIN)).json() == patched.json()
        assert (await door.client.put(path, json={}, headers=ADMIN)).json()["limits"] == {}

    async def test_the_installations_defaults_hold_until_a_tenant_has_its_own(self, gateway: Gateway) -> None:
        gateway.limits = {"search": {"requests": 7}, "stored_memories": 10, "body_bytes": 10**12}
        async with gateway.embedding.running(), gateway.retrieval.running(), gateway.running():
            tenant = await gateway.make_tenant()
            path = f"/admin/v1/tenants/{tenant.id}/limits"
            await limit(gateway, tenant, stored_memories="unlimited", write={"requests": 3, "seconds": 2})
            assert (await gateway.client.get(path, headers=ADMIN)).json()["effective"] == {
                "write": {"requests": 3, "seconds": 2}, "search": {"requests": 7, "seconds": 1}, "admin": None,
                "tokens_a_day": None, "stored_memories": None, "body_bytes": 48 * 1024 * 1024, "batch_items": 1000,
            }  # fmt: skip

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"write": {"requests": 0}}, "/write/requests"),
            ({"write": {"requests": 1, "seconds": 3601}}, "/write/seconds"),
            ({"write": "none"}, "/write"),
            ({"batch_items": 1001}, "/batch_items"),
            ({"body_bytes": 48 * 1024 * 1024 + 1}, "/body_bytes"),
            ({"stored_memories": -1}, "/stored_memories"),
            ({"reads": 3}, "/reads"),
        ],
    )
    async def test_what_makes_no_sense_is_refused_by_name(
        self, door: Gateway, tenant: TenantView, body: dict[str, Any], pointer: str
    ) -> None:
        for method in ("PUT", "PATCH"):
            path = f"/admin/v1/tenants/{tenant.id}/limits"
            answer = await door.client.request(method, path, json=body, headers=ADMIN)
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)

    async def test_nobody_is_not_found_and_no_key_of_a_tenant_may_set_its_limits(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        for path in (f"/admin/v1/tenants/{uuid4()}/limits", f"/admin/v1/tenants/{tenant.id}/keys/nokey/limits"):
            for method, body in (("GET", None), ("PUT", {}), ("PATCH", {"write": None})):
                answer = await door.client.request(method, path, json=body, headers=ADMIN)
                assert answer.status_code == 404
        answer = await door.client.put(f"/admin/v1/tenants/{tenant.id}/limits", json={}, headers=bearer_of(key))
        assert answer.status_code == 401
        stranger = await door.make_tenant()
        path = f"/admin/v1/tenants/{stranger.id}/keys/{key.id}/limits"
        assert (await door.client.get(path, headers=ADMIN)).status_code == 404


class TestUsage:
    async def test_requests_that_succeeded_are_counted_by_kind(
        self, door: Gateway, tenant: TenantView, key: KeyCreated
    ) -> None:
        headers = bearer_of(key)
        for _ in range(3):
            await door.client.post("/v1/memories", json={"content": "x"}, headers=headers)
        await door.client.post("/v1/memories", json={}, headers=headers)
        for _ in range(2):
            await door.client.post("/v1/memories/search", json={"query": "x"}, headers=headers)
        await door.client.get("/v1/memories", headers=headers)
        deadline = time.monotonic() + 20
        while (usage := (await door.client.get("/v1/usage", headers=headers)).json())["days"] == []:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        while sum(usage["days"][0][kind] for kind in ("writes", "searches")) < 5:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
            usage = (await door.client.get("/v1/usage", headers=headers)).json()
        [day] = usage["days"]
        assert (day["writes"], day["searches"], day["tokens"]) == (3, 2, 0)
        admin = await door.client.get(f"/admin/v1/tenants/{tenant.id}/usage", headers=ADMIN)
        assert admin.json()["days"] == usage["days"]

    async def test_limits_and_what_is_left_are_told(self, door: Gateway, tenant: TenantView, key: KeyCreated) -> None:
        await limit(door, tenant, stored_memories=5)
        usage = (await door.client.get("/v1/usage", headers=bearer_of(key))).json()
        assert usage["stored_memories"] == {"used": 0, "limit": 5, "left": 5, "resets_at": None}
        assert usage["tokens_today"]["limit"] is None
        assert usage["limits"]["stored_memories"] == 5

    @pytest.mark.parametrize(
        ("query", "pointer"),
        [
            ("from=2026-01-02&to=2026-01-01", "from"),
            ("from=2024-01-01&to=2026-01-01", "from"),
            ("from=yesterday", "from"),
            ("since=2026-01-01", "since"),
        ],
    )
    async def test_a_range_that_makes_no_sense_is_refused(
        self, door: Gateway, key: KeyCreated, query: str, pointer: str
    ) -> None:
        answer = await door.client.get(f"/v1/usage?{query}", headers=bearer_of(key))
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
        assert (await door.client.get("/v1/usage?to=0001-01-01", headers=bearer_of(key))).status_code == 200

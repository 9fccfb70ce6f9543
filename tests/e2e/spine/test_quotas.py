"""Quotas over the whole platform, with Valkey killed and a service killed while they fill up."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx2
from tests.e2e.spine.conftest import sentence, until

from memplane_core.testing.stack import Stack, StackTenant


def limit(stack: Stack, tenant: StackTenant, **limits: Any) -> None:
    with stack.admin() as admin:
        admin.put(f"/admin/v1/tenants/{tenant.id}/limits", json=limits).raise_for_status()


def usage(client: httpx2.Client) -> dict[str, Any]:
    return client.get("/v1/usage").raise_for_status().json()


def test_a_quota_of_memories_is_exact_while_a_service_is_killed(stack: Stack) -> None:
    tenant = stack.make_tenant("quota of memories")
    limit(stack, tenant, stored_memories=40)

    def write(n: int) -> int:
        with stack.client(tenant, door=n % 2) as client, suppress(httpx2.HTTPError):
            return client.post("/v1/memories", json={"content": sentence(n)}).status_code
        return 0

    with ThreadPoolExecutor(12) as pool:
        first = [pool.submit(write, n) for n in range(40)]
        stack.retrievals[0].kill()
        stack.retrievals[0].start()
        statuses = [future.result() for future in first] + list(pool.map(write, range(40, 120)))

    with stack.client(tenant) as client:
        found = usage(client)["stored_memories"]
        assert found == {"used": 40, "limit": 40, "left": 0, "resets_at": None}
        assert len(client.get("/v1/memories", params={"limit": 1000}).json()["results"]) == 40
        full = client.post("/v1/memories", json={"content": "one more"})
    assert (full.status_code, full.json()["quota"]) == (403, "stored_memories")
    assert sum(status in (201, 202) for status in statuses) <= 40


def test_quotas_hold_and_rates_do_not_while_valkey_is_dead(stack: Stack) -> None:
    tenant = stack.make_tenant("quota of tokens")
    limit(stack, tenant, tokens_a_day=100, search={"requests": 1, "seconds": 3600})
    with stack.client(tenant) as client:
        stack.valkey.kill()
        try:
            statuses: list[int] = []
            while 403 not in statuses and len(statuses) < 40:
                written = client.post("/v1/memories", json={"content": sentence(len(statuses))})
                statuses.append(written.status_code)
            refused = client.post("/v1/memories/search", json={"query": "never asked before " * 30})
            assert (refused.status_code, refused.json()["quota"]) == (403, "tokens_a_day")
            found = usage(client)["tokens_today"]
        finally:
            stack.valkey.start()
        assert set(statuses[:-1]) == {201}
        assert 70 < found["used"] <= 100  # a sentence is about twenty tokens
        by_words = client.post("/v1/memories/search", json={"query": sentence(0), "mode": "lexical"})
        assert by_words.status_code in (200, 429)
        until(lambda: client.get("/v1/whoami").status_code == 429, within_s=30, what="rates are enforced again")


def test_what_a_tenant_did_today_is_told(stack: Stack) -> None:
    with stack.client(stack.make_tenant("usage")) as client:
        for n in range(3):
            client.post("/v1/memories", json={"content": sentence(n)}).raise_for_status()
        client.post("/v1/memories/search", json={"query": "the harbour"}).raise_for_status()

        def told() -> bool:
            days = usage(client)["days"]
            return bool(days) and (days[0]["writes"], days[0]["searches"]) == (3, 1) and days[0]["tokens"] > 30

        until(told, within_s=30, what="three writes, a search and their tokens")
        assert usage(client)["stored_memories"]["used"] == 3

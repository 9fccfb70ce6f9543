"""Policies that have a name, as they work in the service; and that what was written is found at once."""

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.contracts.presets import PolicyChange, PresetName, policy_changes
from memplane_core.storage.policies import change_policy

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


async def _like(service: Service, name: PresetName) -> None:
    async with service.database.tenant(service.tenant) as connection:
        await change_policy(service.tenant, connection, changes=policy_changes(PolicyChange(like=name)))


async def _search(client: httpx2.AsyncClient, query: str, **more: Any) -> list[Json]:
    body = {"query": query, "touch": False, "explain": True, **more}
    response = await client.post("/v1/memories/search", json=body)
    assert response.status_code == 200, response.text
    return response.json()["results"]


async def test_dbgpt_is_its_formula_by_the_clock_of_each_request(service: Service) -> None:
    await _like(service, "dbgpt")
    async with service.running() as client:
        records = [{"content": f"tea of kind {n}", "importance": n / 10} for n in range(0, 11, 2)]
        assert (await client.post("/v1/memories/batch", json={"memories": records})).status_code == 200
        written = datetime.now(UTC)
        for hours in (0, 1, 24, 24 * 365):
            now = written + timedelta(hours=hours)
            for found in await _search(client, "tea of kind 4", now=now.isoformat()):
                since = max(0.0, (now - datetime.fromisoformat(found["last_accessed_at"])) / timedelta(hours=1))
                recency = math.exp(since * math.log(0.99))
                assert found["explain"]["recency"] == pytest.approx(recency, abs=1e-9)
                said = found["explain"]["cosine"] + recency + 0.15 * found["importance"]
                assert found["score"] == pytest.approx(said, abs=1e-9)


async def test_experience_puts_priority_first_among_what_is_alike(service: Service) -> None:
    await _like(service, "experience")
    async with service.running() as client:
        for priority in (2, 5, 1):
            body = {"content": "restart the worker", "priority": priority, "importance": 1 - priority / 5}
            written = await client.post("/v1/memories", json={**body, "on_duplicate": "create"})
            assert written.status_code == 201
        found = await _search(client, "restart the worker")
        assert [memory["priority"] for memory in found] == [5, 2, 1]
        for memory in found:
            said = 0.8 * memory["explain"]["match"] + 0.2 * (memory["priority"] - 1) / 4
            assert memory["score"] == pytest.approx(said, abs=1e-9)


async def test_each_of_1000_texts_is_among_the_first_four_at_once(client: httpx2.AsyncClient) -> None:
    words = ["river", "stone", "lamp", "cedar", "violin", "harbour", "copper", "sparrow", "ledger", "window", "garden",
             "thunder", "maple", "coin"]  # fmt: skip
    texts = [
        f"note {n}: the {words[n % 14]} by the {words[n // 14 % 14]} was {n * 7919 % 1000} paces from the "
        f"{words[n // 196 % 14]}"
        for n in range(1_000)
    ]
    for start in range(0, 1_000, 500):
        batch = [{"content": text, "user_id": "ana"} for text in texts[start : start + 500]]
        assert (await client.post("/v1/memories/batch", json={"memories": batch})).status_code == 200

    async def recalled(text: str) -> bool:
        body = {"query": text, "top_k": 4, "candidates": 16, "touch": False, "filters": {"user_id": "ana"}}
        answer = await client.post("/v1/memories/search", json=body)
        found = answer.raise_for_status().json()["results"]
        return text in [memory["content"] for memory in found]

    hits = 0
    for start in range(0, 1_000, 4):
        hits += sum(await asyncio.gather(*map(recalled, texts[start : start + 4])))
    assert hits / 1_000 == 1.000

"""Who says how much a memory matters that is written without an importance."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.domain.importance import guess_importance
from memplane_core.storage.policies import change_policy

pytestmark = pytest.mark.anyio

FACT = "I moved from Oslo to Lisbon in March 2023."


@pytest.fixture
async def client(service: Service) -> AsyncGenerator[httpx2.AsyncClient]:
    """Each test sets the policy before its first request: it is remembered for seconds."""
    async with service.running() as running:
        yield running


async def _scored_by(service: Service, scorer: str) -> None:
    async with service.database.tenant(service.tenant) as connection:
        await change_policy(service.tenant, connection, changes={"importance_scorer": scorer})


async def _unscored(service: Service) -> set[str]:
    async with service.database.tenant(service.tenant) as connection:
        rows = await connection.fetch("SELECT content FROM memory WHERE unscored")
    return {row["content"] for row in rows}


async def _write(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/memories", json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def test_words_alone_score_it_at_once_and_what_is_given_stays(
    client: httpx2.AsyncClient, service: Service
) -> None:
    await _scored_by(service, "heuristic")
    assert (await _write(client, content=FACT))["importance"] == guess_importance(FACT) > 0.5
    assert (await _write(client, content="ok, thanks"))["importance"] < 0.2
    assert (await _write(client, content=FACT, user_id="other", importance=0))["importance"] == 0
    assert await _unscored(service) == set()


async def test_until_a_model_does_the_guess_stands_and_what_is_given_is_not_asked_about(
    client: httpx2.AsyncClient, service: Service
) -> None:
    await _scored_by(service, "llm")
    assert (await _write(client, content=FACT))["importance"] == guess_importance(FACT)
    await _write(client, content="given", importance=0)
    batch = [{"content": "first of a batch"}, {"content": "second of a batch", "importance": 0.5}]
    assert (await client.post("/v1/memories/batch", json={"memories": batch})).status_code == 200
    assert await _unscored(service) == {FACT, "first of a batch"}


async def test_0_is_a_value_wherever_it_is_given(client: httpx2.AsyncClient, service: Service) -> None:
    await _scored_by(service, "heuristic")
    named = await _write(client, content=FACT, external_id="e", importance=0)
    assert (named["importance"], (await _write(client, content=FACT, external_id="e"))["importance"]) == (0, 0)
    other = await _write(client, content="another", importance=0.9)
    patched = await client.patch(f"/v1/memories/{other['id']}", json={"importance": 0})
    assert patched.json()["importance"] == 0
    batch = [{"content": "in a batch", "importance": 0}]
    await client.post("/v1/memories/batch", json={"memories": batch})
    listed = await client.post("/v1/memories/list", json={"filters": {"importance": 0}})
    assert {memory["content"] for memory in listed.json()["results"]} == {FACT, "another", "in a batch"}
    observed = await client.post("/v1/observations", json={"content": FACT, "session_id": "s", "importance": 0})
    assert observed.json()["importance"] == 0


class TestGivenLater:
    async def test_by_a_patch_even_to_what_it_is_already(self, client: httpx2.AsyncClient, service: Service) -> None:
        await _scored_by(service, "llm")
        made = await _write(client, content=FACT)
        path = f"/v1/memories/{made['id']}"
        assert (await client.patch(path, json={"priority": 4})).status_code == 200
        assert await _unscored(service) == {FACT}
        patched = (await client.patch(path, json={"importance": made["importance"]})).json()
        assert (patched["importance"], patched["version"]) == (made["importance"], 3)
        assert await _unscored(service) == set()
        assert (await client.patch(path, json={"importance": made["importance"]})).json()["version"] == 3

    async def test_by_a_write_under_the_same_name(self, client: httpx2.AsyncClient, service: Service) -> None:
        await _scored_by(service, "llm")
        await _write(client, content=FACT, external_id="e")
        await _write(client, content="changed", external_id="e")
        assert await _unscored(service) == {"changed"}
        await _write(client, content="changed", external_id="e", importance=0.4)
        assert await _unscored(service) == set()

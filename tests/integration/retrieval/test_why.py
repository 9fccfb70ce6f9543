"""Why a memory was not recalled: each place where one can fall out of a search, told by the search itself."""

from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(service: Service) -> AsyncGenerator[httpx2.AsyncClient]:
    async with service.running() as running:
        yield running


async def wrote(client: httpx2.AsyncClient, content: str, **fields: Any) -> str:
    answer = await client.post("/v1/memories", json={"content": content, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def why(client: httpx2.AsyncClient, memory_id: str, query: str = "the red stone", **search: Any) -> Any:
    answer = await client.post("/v1/memories/why", json={"query": query, "memory_id": memory_id, **search})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_one_that_the_search_gives_is_told_with_its_rank_and_score(client: httpx2.AsyncClient) -> None:
    await wrote(client, "a blue feather")
    kept = await wrote(client, "the keys are under the red stone")
    told = await why(client, kept)
    [first, *_] = (await client.post("/v1/memories/search", json={"query": "the red stone"})).json()["results"]
    assert (told["outcome"], told["rank"], told["pool"]) == ("recalled", 1, 2)
    assert first["id"] == kept
    assert told["score"] == pytest.approx(first["score"], abs=1e-3)
    assert told["explain"]["lexical"] == 1.0


async def test_one_that_others_are_better_than_is_told_by_how_much(client: httpx2.AsyncClient) -> None:
    far = await wrote(client, "a blue feather")
    await wrote(client, "the keys are under the red stone")
    told = await why(client, far, top_k=1)
    assert (told["outcome"], told["rank"], told["top_k"]) == ("rank", 2, 1)
    assert told["score"] < told["least_score"]


async def test_one_that_is_not_relevant_enough_is_told_so(client: httpx2.AsyncClient) -> None:
    far = await wrote(client, "a blue feather")
    told = await why(client, far, query="quarterly tax return", min_relevance=0.99)
    assert (told["outcome"], told["min_relevance"]) == ("min_relevance", 0.99)
    assert told["relevance"] < 0.99


async def test_filters_that_do_not_match_are_named(client: httpx2.AsyncClient) -> None:
    kept = await wrote(client, "the red stone", user_id="ana", scene=["garden"])
    told = await why(client, kept, filters={"user_id": "ana", "scene": "house", "NOT": {"scene": "garden"}})
    assert (told["outcome"], told["unmatched"], told["rank"]) == ("filter", ["scene", "NOT"], None)


async def test_words_alone_do_not_name_what_shares_none(client: httpx2.AsyncClient) -> None:
    far = await wrote(client, "a blue feather")
    await wrote(client, "the red stone")
    told = await why(client, far, mode="lexical", top_k=1)
    assert (told["outcome"], told["rank"], told["score"]) == ("not_nominated", None, None)


async def test_hidden_ones_are_told_by_their_marker(client: httpx2.AsyncClient) -> None:
    kept = await wrote(client, "the red stone")
    assert (await client.post(f"/v1/memories/{kept}/forget")).status_code == 200
    assert (await why(client, kept))["outcome"] == "forgotten"


async def test_what_holds_no_more_is_told_apart_from_what_is_gone(client: httpx2.AsyncClient) -> None:
    ended = await wrote(client, "the red stone", valid_to="2020-01-01T00:00:00Z")
    assert (await why(client, ended))["outcome"] == "validity"
    assert (await why(client, ended, valid_at="any"))["outcome"] == "recalled"
    assert (await why(client, str(uuid4())))["outcome"] == "missing"


async def test_one_that_has_expired_is_told_so(
    client: httpx2.AsyncClient, service: Service, database: Database
) -> None:
    kept = await wrote(client, "the red stone")
    async with database.tenant(service.tenant) as connection:
        await connection.execute("UPDATE memory SET expires_at = now() - interval '1 hour' WHERE id = $1", kept)
    assert (await why(client, kept))["outcome"] == "expired"


async def test_asking_leaves_no_trace_in_what_is_found(client: httpx2.AsyncClient) -> None:
    kept = await wrote(client, "the red stone")
    before = (await client.get(f"/v1/memories/{kept}")).json()
    await why(client, kept, touch=True)
    after = (await client.get(f"/v1/memories/{kept}")).json()
    assert (after["access_count"], after["last_accessed_at"]) == (before["access_count"], before["last_accessed_at"])

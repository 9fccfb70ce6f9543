"""Observations from many at once, and through a process that is killed: each is somewhere, once, and in order."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import pytest
from tests.integration.retrieval.conftest import SECRET, Service

from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.session import Database
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.tokens import Signed

pytestmark = pytest.mark.anyio

NOWHERE: Final = "http://127.0.0.1:1"
SESSION: Final = {"session_id": "s", "user_id": "ana"}
WRITERS: Final = 8
EACH: Final = 125


@asynccontextmanager
async def door(url: str, tenant: TenantId) -> AsyncGenerator[httpx2.AsyncClient]:
    principal = Principal(tenant=tenant, scopes=SCOPES, key_id="testkey", request_id="request-of-test")
    signed = Signed(SECRET, principal)
    async with httpx2.AsyncClient(base_url=url, auth=signed, timeout=30, trust_env=False) as client:
        yield client


async def insist(client: httpx2.AsyncClient, texts: list[str]) -> list[str]:
    """Send observations until they are answered, under one Idempotency-Key; returns their ids."""
    body = {**SESSION, "observations": [{"content": text} for text in texts]}
    for _ in range(600):
        try:
            answer = await client.post("/v1/observations/batch", json=body, headers={"Idempotency-Key": texts[0]})
        except httpx2.HTTPError:
            pass
        else:
            if answer.status_code == 200:
                return [taken["id"] for taken in answer.json()["results"]]
            assert answer.status_code in (409, 503), answer.text
        await asyncio.sleep(0.05)
    raise AssertionError("never answered")


async def everything(client: httpx2.AsyncClient) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What became memories, and what is held."""
    found = await client.get("/v1/memories", params={"sort": "created_at", "limit": 1000})
    held = await client.get("/v1/observations", params=SESSION)
    return found.json()["results"], held.json()["results"]


async def test_a_thousand_from_eight_writers_through_a_killed_process_are_a_thousand_once_each(
    tenant: TenantId, postgres_settings: PostgresSettings
) -> None:
    env = {
        "MEMPLANE_POSTGRES__URL": postgres_settings.url.get_secret_value(),
        "MEMPLANE_REDIS__BROKER_URL": "redis://127.0.0.1:1/0",
        "MEMPLANE_REDIS__CACHE_URL": "redis://127.0.0.1:1/0",
        "MEMPLANE_MILVUS__URI": NOWHERE,
        "MEMPLANE_TRUST__INTERNAL_SECRET": SECRET,
        "MEMPLANE_ENDPOINTS__EMBEDDING_URL": NOWHERE,
    }
    ids: dict[str, str] = {}
    reached = {count: asyncio.Event() for count in (WRITERS * EACH // 4, WRITERS * EACH // 2)}
    with ServiceProcess("memplane_retrieval", env=env) as service:

        async def write(client: httpx2.AsyncClient, writer: int) -> None:
            for start in range(0, EACH, 5):
                texts = [f"writer {writer} item {n}" for n in range(start, start + 5)]
                ids.update(zip(texts, await insist(client, texts), strict=True))
                for count, event in reached.items():
                    if len(ids) >= count:
                        event.set()

        async def kill() -> None:
            for event in reached.values():
                await event.wait()
                service.kill()
                service.start()

        async with door(service.url, tenant) as client:
            async with asyncio.TaskGroup() as group:
                group.create_task(kill())
                for writer in range(WRITERS):
                    group.create_task(write(client, writer))
            promoted, held = await everything(client)

    assert (len(promoted), len(held)) == (WRITERS * EACH - 5, 5)
    places = Counter(its["content"] for its in (*promoted, *held))
    assert places == Counter(list(ids))  # each text once
    assert {its["content"]: its["id"] for its in (*promoted, *held)} == ids
    # What a writer has sent later has not become a memory earlier.
    order = [its["content"] for its in (*promoted, *held)]
    for writer in range(WRITERS):
        mine = [int(text.rsplit(" ", 1)[1]) for text in order if text.startswith(f"writer {writer} ")]
        assert mine == list(range(EACH))


async def test_writers_of_one_process_take_turns_and_what_ends_the_session_is_one_of_them(service: Service) -> None:
    async with service.running() as client:

        async def write(writer: int) -> list[dict[str, Any]]:
            taken: list[dict[str, Any]] = []
            for n in range(6):
                body = {**SESSION, "observations": [{"content": f"{writer} {n} {k}"} for k in range(3)]}
                answer = await client.post("/v1/observations/batch", json=body)
                assert answer.status_code == 200, answer.text
                taken += answer.json()["results"]
            return taken

        async def end() -> list[str]:
            answer = await client.post("/v1/sessions/end", json=SESSION)
            assert answer.status_code == 200, answer.text
            return answer.json()["promoted"]

        writing = asyncio.gather(*(write(n) for n in range(4)))
        ends = [*await asyncio.gather(end(), end())]
        taken = [its for results in await writing for its in results]
        ends.append(await end())
        promoted = [name for its in taken for name in its["promoted"]] + [name for ended in ends for name in ended]
        assert Counter(promoted) == Counter(its["id"] for its in taken)  # each is told of once
        found, held = await everything(client)
        assert Counter(memory["id"] for memory in found) == Counter(promoted)
        assert held == []


async def test_a_search_during_overflow_finds_everything_in_one_of_both(service: Service) -> None:
    async with service.running() as client:
        made: list[str] = []
        done = asyncio.Event()

        async def write() -> None:
            for n in range(40):
                answer = await client.post("/v1/observations", json={"content": f"lantern {n}", **SESSION})
                made.append(answer.json()["id"])
            done.set()

        async def read() -> None:
            while not done.is_set():
                known = list(made)
                asked = {"query": "lantern", "top_k": 100, "mode": "lexical", "include_short_term": SESSION}
                found = (await client.post("/v1/memories/search", json=asked)).json()
                short = [its["id"] for its in found["short_term"]]
                recalled = [its["id"] for its in found["results"]]
                assert set(short).isdisjoint(recalled)
                assert set(known) <= {*short, *recalled}
                assert [made.index(name) for name in short if name in made] == sorted(
                    made.index(name) for name in short if name in made
                )

        await asyncio.gather(write(), read())


async def test_observed_at_is_after_what_came_before_whatever_the_clock_says(
    service: Service, database: Database
) -> None:
    async with service.running() as client:
        first = await client.post("/v1/observations", json={"content": "first", **SESSION})
        async with database.tenant(service.tenant) as connection:
            await connection.execute(
                "UPDATE observation SET seq = seq + 3600000000, observed_at = observed_at + '1 h' WHERE tenant_id = $1",
                service.tenant,
            )
        second = await client.post("/v1/observations", json={"content": "second", **SESSION})
        [one, other] = (await client.get("/v1/observations", params=SESSION)).json()["results"]
        assert (one["id"], other["id"]) == (first.json()["id"], second.json()["id"])
        assert one["observed_at"] < other["observed_at"]

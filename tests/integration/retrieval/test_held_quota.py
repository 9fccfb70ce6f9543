"""What sessions hold counts as stored: what a full quota refuses, and what it must not, since it needs no room."""

import asyncio
from collections import Counter
from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.storage.limits import StoredCount, recount_memories, stored_count

pytestmark = pytest.mark.anyio

SESSION = {"session_id": "s", "user_id": "ana"}


async def allow(service: Service, most: int, **rules: Any) -> None:
    """Set the tenant's quota, and its rules of short-term memory."""
    async with service.database.tenant(service.tenant) as connection:
        await connection.execute(
            "UPDATE tenant SET limits = $2, policy = policy || $3 WHERE id = $1",
            service.tenant,
            {"stored_memories": most},
            {"short_term": rules},
        )


async def counted(service: Service) -> StoredCount:
    """The count, which must be right."""
    async with service.database.tenant(service.tenant) as connection:
        recount = await recount_memories(service.tenant, connection, mend=False)
        assert recount.stored == recount.counted == await stored_count(service.tenant, connection)
    return recount.stored


async def observe(client: httpx2.AsyncClient, content: str, **session: str) -> httpx2.Response:
    return await client.post("/v1/observations", json={"content": content, **SESSION, **session})


async def end(client: httpx2.AsyncClient, **session: str) -> list[str]:
    answer = await client.post("/v1/sessions/end", json=SESSION | session)
    assert answer.status_code == 200, answer.text
    return answer.json()["promoted"]


async def held(client: httpx2.AsyncClient) -> list[str]:
    answer = await client.get("/v1/observations", params=SESSION)
    return [its["id"] for its in answer.json()["results"]]


async def memories(client: httpx2.AsyncClient) -> list[str]:
    answer = await client.get("/v1/memories", params={"sort": "created_at"})
    return [memory["id"] for memory in answer.json()["results"]]


async def test_observations_and_memories_fill_one_quota_and_what_does_not_fit_changes_nothing(service: Service) -> None:
    await allow(service, 3)
    async with service.running() as client:
        assert (await client.post("/v1/memories", json={"content": "a memory"})).status_code == 201
        made = [(await observe(client, text)).json()["id"] for text in "ab"]
        assert await counted(service) == StoredCount(3, 2)
        for path, body in (
            ("/v1/observations", {"content": "c", **SESSION}),
            ("/v1/observations", {"content": "c", **SESSION, "session_id": "another"}),
            ("/v1/observations/batch", {**SESSION, "observations": [{"content": text} for text in "cd"]}),
            ("/v1/memories", {"content": "another memory"}),
        ):
            refused = await client.post(path, json=body, headers={"Idempotency-Key": "k"})
            assert refused.status_code == 403, (path, refused.text)
            told = {name: refused.json()[name] for name in ("code", "quota", "limit", "used")}
            assert told == {"code": "quota_exceeded", "quota": "stored_memories", "limit": 3, "used": 3}
        assert await held(client) == made
        assert await counted(service) == StoredCount(3, 2)


async def test_a_batch_that_fits_in_part_is_refused_whole_also_where_it_only_passes_through(service: Service) -> None:
    await allow(service, 9, buffer_size=2)
    async with service.running() as client:
        things = [{"content": f"thing {n}"} for n in range(10)]
        refused = await client.post("/v1/observations/batch", json={**SESSION, "observations": things})
        assert (refused.status_code, refused.json()["used"]) == (403, 0)
        assert (await held(client), await memories(client)) == ([], [])
        taken = await client.post("/v1/observations/batch", json={**SESSION, "observations": things[1:]})
        assert taken.status_code == 200
    assert await counted(service) == StoredCount(9, 2)


async def test_with_a_full_quota_what_is_held_can_become_memories(service: Service) -> None:
    await allow(service, 4)
    async with service.running() as client:
        made = [(await observe(client, text)).json()["id"] for text in "abcd"]
        assert await end(client) == made
        assert await memories(client) == made
    assert await counted(service) == StoredCount(4, 0)


async def test_and_where_the_quota_was_set_below_what_is_there(service: Service) -> None:
    await allow(service, 4)
    async with service.running() as client:
        made = [(await observe(client, text)).json()["id"] for text in "abcd"]
        await allow(service, 1)
        assert await end(client) == made
        assert (await observe(client, "e")).status_code == 403
    assert await counted(service) == StoredCount(4, 0)


async def test_overflow_needs_the_room_of_what_is_new_and_no_more(service: Service) -> None:
    await allow(service, 3, buffer_size=2)
    async with service.running() as client:
        made = [(await observe(client, text)).json()["id"] for text in "abc"]
        assert (await memories(client), await held(client)) == (made[:1], made[1:])
        assert (await observe(client, "d")).status_code == 403
        assert (await memories(client), await held(client)) == (made[:1], made[1:])
        assert (await client.delete(f"/v1/memories/{made[0]}")).status_code == 204
        last = (await observe(client, "d")).json()
        assert last["promoted"] == made[1:2]
        assert await held(client) == [made[2], last["id"]]
    assert await counted(service) == StoredCount(3, 2)


async def test_what_is_forgotten_for_want_of_room_makes_room(service: Service) -> None:
    await allow(service, 2, buffer_size=2, overflow="drop")
    async with service.running() as client:
        made = [(await observe(client, text)).json()["id"] for text in "ab"]
        assert (await observe(client, "c")).json()["dropped"] == made[:1]
    assert await counted(service) == StoredCount(2, 2)


async def test_what_is_taken_back_makes_room(service: Service) -> None:
    await allow(service, 1)
    async with service.running() as client:
        first = (await observe(client, "a")).json()["id"]
        assert (await client.delete(f"/v1/observations/{first}")).status_code == 204
        assert await counted(service) == StoredCount(0, 0)
        assert (await observe(client, "b")).status_code == 201
    assert await counted(service) == StoredCount(1, 1)


async def test_sessions_and_writers_at_once_fill_it_exactly_while_sessions_end(service: Service) -> None:
    await allow(service, 30)
    async with service.running() as client:

        async def ask(n: int) -> int:
            if n % 8 == 0:
                await end(client, session_id=f"s{n % 5}")
            if n % 3 == 0:
                return (await client.post("/v1/memories", json={"content": f"memory {n}"})).status_code
            return (await observe(client, f"observation {n}", session_id=f"s{n % 5}")).status_code

        answers = Counter(await asyncio.gather(*(ask(n) for n in range(60))))
        assert answers == {201: 30, 403: 30}
    assert (await counted(service)).total == 30

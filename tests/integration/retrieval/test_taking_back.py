"""Taking an observation back: it is nowhere any more, and a memory of it is somebody's who came first."""

import asyncio

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

pytestmark = pytest.mark.anyio

SESSION = {"session_id": "s", "user_id": "ana"}
MARKER = "zanzibar"


async def observe(client: httpx2.AsyncClient, content: str, **headers: str) -> str:
    answer = await client.post("/v1/observations", json={"content": content, **SESSION}, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def held(client: httpx2.AsyncClient) -> list[str]:
    answer = await client.get("/v1/observations", params=SESSION)
    return [its["id"] for its in answer.json()["results"]]


async def rows_with(service: Service, text: str) -> list[str]:
    """Tables of the tenant that have a row in which a text stands."""
    found: list[str] = []
    async with service.database.tenant(service.tenant) as connection:
        tables = await connection.fetch(
            "SELECT c.relname::text AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace"
            " AND a.attname = 'tenant_id'"
        )
        for table in (row["name"] for row in tables):
            there = f"SELECT EXISTS (SELECT FROM {table} t WHERE position($1 IN to_jsonb(t)::text) > 0)"
            if await connection.fetchval(there, text):
                found.append(table)
    return found


async def audited(service: Service) -> list[tuple[str, str, str]]:
    """Actor, target and result of what the audit tells of observations that were taken back."""
    async with service.database.tenant(service.tenant) as connection:
        rows = await connection.fetch("SELECT actor, target, result FROM audit WHERE action = 'deleteObservation'")
    return [(row["actor"], row["target"], row["result"]) for row in rows]


async def test_it_is_nowhere_any_more_and_becomes_no_memory(client: httpx2.AsyncClient, service: Service) -> None:
    first = await observe(client, "a lantern")
    gone = await observe(client, f"the {MARKER} of it", **{"Idempotency-Key": "k"})
    assert await rows_with(service, MARKER) == ["observation"]
    answer = await client.delete(f"/v1/observations/{gone}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert await rows_with(service, MARKER) == []
    assert await held(client) == [first]
    assert (await client.post("/v1/sessions/end", json=SESSION)).json()["promoted"] == [first]
    assert (await client.get(f"/v1/memories/{gone}")).status_code == 404
    again = await client.delete(f"/v1/observations/{gone}")
    assert (again.status_code, again.json()["code"]) == (404, "not_found")
    assert await audited(service) == [("testkey", gone, "done")]


async def test_a_repeat_is_answered_the_same_and_told_of_once(client: httpx2.AsyncClient, service: Service) -> None:
    gone, other = await observe(client, "a"), await observe(client, "b")
    headers = {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(client.delete(f"/v1/observations/{gone}", headers=headers) for _ in range(4)))
    assert [answer.status_code for answer in answers] == [204] * 4
    assert sorted(answer.headers.get("Idempotency-Replayed", "") for answer in answers) == ["", *["true"] * 3]
    late = await client.delete(f"/v1/observations/{gone}", headers=headers)
    assert (late.status_code, late.headers["Idempotency-Replayed"]) == (204, "true")
    for wrong in (other, "01990000-0000-7000-8000-000000000001"):
        refused = await client.delete(f"/v1/observations/{wrong}", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    assert await held(client) == [other]
    assert len(await audited(service)) == 1


async def test_what_is_a_memory_by_now_is_told_so_and_stays(client: httpx2.AsyncClient, service: Service) -> None:
    promoted = await observe(client, "a")
    assert (await client.post("/v1/sessions/end", json=SESSION)).json()["promoted"] == [promoted]
    answer = await client.delete(f"/v1/observations/{promoted}", headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "it is a memory" in answer.json()["detail"]
    assert (await client.get(f"/v1/memories/{promoted}")).status_code == 200
    assert await audited(service) == []
    # What is refused is not remembered either.
    other = await observe(client, "b")
    assert (await client.delete(f"/v1/observations/{other}", headers={"Idempotency-Key": "k"})).status_code == 204


async def test_whoever_ends_the_session_meanwhile_makes_a_memory_of_it_or_does_not(service: Service) -> None:
    """Two processes: the turns that requests take in one of them do not keep these apart."""
    async with service.running() as one, service.running() as another:
        outcomes: set[int] = set()
        for n in range(20):
            name = await observe(one, f"thing {n}")

            async def delete(name: str = name) -> int:
                return (await one.delete(f"/v1/observations/{name}")).status_code

            async def end(late: float = n % 4 * 0.001) -> list[str]:
                await asyncio.sleep(late)
                return (await another.post("/v1/sessions/end", json=SESSION)).json()["promoted"]

            status, promoted = await asyncio.gather(delete(), end())
            outcomes.add(status)
            assert (status, promoted) in ((204, []), (404, [name]))
            found = (await one.get(f"/v1/memories/{name}")).status_code
            assert found == (404 if status == 204 else 200)
            assert await held(one) == []
        assert outcomes == {204, 404}

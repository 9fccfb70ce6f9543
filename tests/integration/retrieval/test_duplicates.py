import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Database

pytestmark = pytest.mark.anyio


@contextmanager
def counted_statements(database: Database) -> Generator[list[str]]:
    """Every statement that is sent meanwhile in a tenant's transactions."""
    seen: list[str] = []
    real = database.tenant

    class Counting:
        def __init__(self, connection: Connection) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._connection, name)

            def counting(statement: str, *args: object) -> Any:
                seen.append(statement)
                return method(statement, *args)

            return counting

    @asynccontextmanager
    async def tenant(tenant: TenantId) -> AsyncGenerator[Any]:
        async with real(tenant) as connection:
            yield Counting(connection)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "tenant", tenant)
        yield seen


async def _post(client: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    return await client.post("/v1/memories", json=fields)


class TestDuplicates:
    async def test_the_same_again_is_the_same_memory(self, client: httpx2.AsyncClient) -> None:
        first = await _post(client, content="tea at five", user_id="ann")
        again = await _post(client, content="tea at five", user_id="ann")

        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json() == first.json() | {"deduplicated": True}

    @pytest.mark.parametrize(
        "difference",
        [
            {"user_id": "bob"},
            {"user_id": None},
            {"agent_id": "a"},
            {"session_id": "s"},
            {"actor": "ann"},
            {"memory_type": "insight"},
            {"occurred_at": "2023-01-01T00:00:00Z"},
            {"content": "tea at five "},
        ],
    )
    async def test_what_differs_in_its_identity_is_another(
        self, client: httpx2.AsyncClient, difference: dict[str, Any]
    ) -> None:
        base: dict[str, Any] = {"content": "tea at five", "user_id": "ann"}
        first = await _post(client, **base)
        other = await _post(client, **(base | difference))

        assert other.status_code == 201
        assert other.json()["id"] != first.json()["id"]

    async def test_twenty_at_once_are_one(self, client: httpx2.AsyncClient) -> None:
        answers = await asyncio.gather(*(_post(client, content="raced", user_id="u") for _ in range(20)))

        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert len((await client.get("/v1/memories")).json()["results"]) == 1

    async def test_batches_with_the_same_twins_in_opposite_orders_do_not_deadlock(
        self, client: httpx2.AsyncClient
    ) -> None:
        twins = [{"content": f"twin {n}", "user_id": "u"} for n in range(40)]
        batches = [twins if n % 2 else twins[::-1] for n in range(20)]

        answers = await asyncio.gather(*(client.post("/v1/memories/batch", json={"memories": b}) for b in batches))

        assert {answer.status_code for answer in answers} == {200}
        made = [item for answer in answers for item in answer.json()["results"] if item["status"] == 201]
        assert len(made) == 40
        assert len({item["id"] for answer in answers for item in answer.json()["results"]}) == 40

    async def test_twins_within_a_batch_are_one(self, client: httpx2.AsyncClient) -> None:
        answer = await client.post(
            "/v1/memories/batch", json={"memories": [{"content": "same"}, {"content": "other"}, {"content": "same"}]}
        )

        first, other, again = answer.json()["results"]
        assert (first["status"], other["status"], again["status"]) == (201, 201, 200)
        assert again["id"] == first["id"] != other["id"]
        assert again["deduplicated"]

    async def test_create_makes_a_twin_and_a_later_return_finds_the_first(self, client: httpx2.AsyncClient) -> None:
        first = (await _post(client, content="again")).json()["id"]
        twin = await _post(client, content="again", on_duplicate="create")
        found = await _post(client, content="again")

        assert twin.status_code == 201
        assert twin.json()["id"] != first
        assert found.json()["id"] == first

    async def test_update_changes_what_is_named_and_keeps_the_rest(self, client: httpx2.AsyncClient) -> None:
        first = await _post(client, content="fact", metadata={"a": 1}, scene=["x"], priority=2)
        updated = await _post(client, content="fact", importance=0.9, on_duplicate="update")

        assert updated.status_code == 200
        body = updated.json()
        assert (body["id"], body["importance"], body["version"]) == (first.json()["id"], 0.9, 2)
        assert (body["metadata"], body["scene"], body["priority"]) == ({"a": 1}, ["x"], 2)

    async def test_a_repeat_keeps_the_later_expiry(self, client: httpx2.AsyncClient) -> None:
        await _post(client, content="lasting", expires_at="2090-01-01T00:00:00Z")

        later = await _post(client, content="lasting", expires_at="2095-01-01T00:00:00Z")
        sooner = await _post(client, content="lasting", expires_at="2080-01-01T00:00:00Z")
        never = await _post(client, content="lasting")

        assert later.json()["expires_at"] == sooner.json()["expires_at"] == "2095-01-01T00:00:00Z"
        assert never.json()["expires_at"] is None

    async def test_an_expired_twin_does_not_swallow_a_new_write(self, client: httpx2.AsyncClient) -> None:
        old = await _post(client, content="gone", expires_at="2020-01-01T00:00:00Z")
        new = await _post(client, content="gone")

        assert (old.status_code, new.status_code) == (201, 201)
        assert new.json()["id"] != old.json()["id"]
        assert (await client.get(f"/v1/memories/{old.json()['id']}")).status_code == 404

    async def test_the_same_again_is_answered_even_when_it_has_expired_already(
        self, client: httpx2.AsyncClient
    ) -> None:
        for fields in ({"content": "late"}, {"content": "late", "external_id": "doc"}):
            answers = [await _post(client, **fields, expires_at="2020-01-01T00:00:00Z") for _ in range(3)]

            assert {answer.status_code for answer in answers} <= {200, 201}
            assert {answer.json()["expires_at"] for answer in answers} == {"2020-01-01T00:00:00Z"}
        assert (await client.get("/v1/memories")).json()["results"] == []

    async def test_repeats_in_a_batch_do_to_a_memory_what_they_would_do_one_by_one(
        self, client: httpx2.AsyncClient
    ) -> None:
        before = (await _post(client, content="fact", importance=0.1, source="a")).json()
        repeats = [
            {"content": "fact", "importance": 0.2, "source": "ignored"},
            {"content": "fact", "importance": 0.9, "on_duplicate": "update"},
            {"content": "fact", "importance": 0.3},
        ]

        answer = await client.post("/v1/memories/batch", json={"memories": repeats})

        assert [item["id"] for item in answer.json()["results"]] == [before["id"]] * 3
        after = (await client.get(f"/v1/memories/{before['id']}")).json()
        assert (after["importance"], after["source"], after["version"]) == (0.9, "a", 2)

    async def test_a_batch_that_changes_many_takes_no_more_statements_than_one_that_changes_one(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        async def statements(round_: str, count: int) -> int:
            memories = [
                {"content": f"{round_} {n}", "external_id": f"{n}", "scene": [round_], "metadata": {"n": n}}
                for n in range(count)
            ] + [
                {"content": f"twin {n}", "importance": len(round_) / 10, "on_duplicate": "update"} for n in range(count)
            ]
            with counted_statements(service.database) as seen:
                answer = await client.post("/v1/memories/batch", json={"memories": memories})
            assert {item["status"] for item in answer.json()["results"]} <= {200, 201}
            return len(seen)

        await statements("first", 40)
        one, many = await statements("second", 1), await statements("third", 40)

        assert many == one
        listed = (await client.get("/v1/memories", params={"limit": 1000})).json()["results"]
        assert len(listed) == 80
        named = {memory["external_id"]: memory for memory in listed if memory["external_id"]}
        assert {(m["content"], m["scene"][0], m["metadata"]["n"]) for m in named.values()} == {
            (f"third {n}", "third", n) for n in range(40)
        }
        assert {memory["importance"] for memory in listed if not memory["external_id"]} == {0.5}


class TestExternalIds:
    async def test_writing_the_name_again_updates(self, client: httpx2.AsyncClient) -> None:
        first = await _post(client, content="v1", external_id="doc", user_id="u", metadata={"keep": True}, actor="ann")
        second = await _post(client, content="v2", external_id="doc", user_id="u", importance=0)

        assert (first.status_code, second.status_code) == (201, 200)
        body = second.json()
        assert body["id"] == first.json()["id"]
        assert (body["content"], body["importance"], body["metadata"], body["actor"]) == (
            "v2",
            0,
            {"keep": True},
            "ann",
        )
        assert (body["version"], body["deduplicated"]) == (2, False)

    async def test_the_same_name_of_another_user_is_another(self, client: httpx2.AsyncClient) -> None:
        ids = {
            (await _post(client, content="x", external_id="doc", **owner)).json()["id"]
            for owner in ({}, {"user_id": "a"}, {"user_id": "b"}, {"user_id": "a", "agent_id": "g"})
        }
        assert len(ids) == 4

    async def test_twenty_at_once_are_one_with_the_content_of_one_of_them(self, client: httpx2.AsyncClient) -> None:
        answers = await asyncio.gather(*(_post(client, content=f"take {n}", external_id="raced") for n in range(8)))

        assert sorted({answer.status_code for answer in answers}) == [200, 201]
        [memory] = (await client.get("/v1/memories")).json()["results"]
        assert memory["content"] in {f"take {n}" for n in range(8)}
        assert memory["version"] == 8

    async def test_a_hidden_one_that_the_index_has_lost_comes_back_and_can_be_deleted(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        ids = [(await _post(client, content="x", external_id=name)).json()["id"] for name in ("one", "two")]
        async with database.tenant(tenant) as connection:  # a marker, and what it asks of the index
            await connection.execute("UPDATE memory SET state = 'forgotten' WHERE tenant_id = $1", tenant)
            await connection.execute(
                "INSERT INTO outbox (tenant_id, generation, memory_id, rev, op, done_at)"
                " SELECT tenant_id, generation, memory_id, rev, 'delete', now() FROM outbox WHERE tenant_id = $1",
                tenant,
            )

        back = await _post(client, content="x", external_id="one")
        gone = await client.delete(f"/v1/memories/{ids[1]}")

        assert (back.status_code, back.json()["id"], back.json()["state"]) == (200, ids[0], "active")
        assert gone.status_code == 204
        async with database.tenant(tenant) as connection:
            rows = await connection.fetch(
                "SELECT memory_id, rev, op FROM outbox WHERE tenant_id = $1 AND done_at IS NULL", tenant
            )
        assert {(str(row["memory_id"]), row["rev"], row["op"]) for row in rows} == {
            (ids[0], 1, "delete"),
            (ids[0], 2, "upsert"),
            (ids[1], 1, "delete"),
        }

    async def test_an_expired_one_comes_back_alive(self, client: httpx2.AsyncClient) -> None:
        old = await _post(client, content="x", external_id="doc", expires_at="2020-01-01T00:00:00Z")
        new = await _post(client, content="y", external_id="doc")

        assert (new.status_code, new.json()["id"], new.json()["expires_at"]) == (200, old.json()["id"], None)

    async def test_the_name_twice_in_a_batch_is_one_memory_with_the_last_word(self, client: httpx2.AsyncClient) -> None:
        items = [
            {"content": "v1", "external_id": "doc", "metadata": {"a": 1}},
            {"content": "v2", "external_id": "doc", "priority": 4},
        ]
        answer = await client.post("/v1/memories/batch", json={"memories": items})

        first, second = answer.json()["results"]
        assert (first["status"], second["status"]) == (201, 200)
        assert first["id"] == second["id"]
        memory = (await client.get(f"/v1/memories/{first['id']}")).json()
        assert (memory["content"], memory["metadata"], memory["priority"]) == ("v2", {"a": 1}, 4)

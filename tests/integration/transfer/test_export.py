"""All that a tenant has, as lines."""

import asyncio
import hashlib
import json
from datetime import UTC, datetime
from uuid import UUID

import httpx2
import pytest
from tests.integration.transfer.conftest import Door, Exported, export, fill

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio

MOMENT = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)


class TestWhatIsInIt:
    async def test_an_empty_tenant_has_a_header_a_policy_and_a_trailer(
        self, client: httpx2.AsyncClient, tenant: TenantId
    ) -> None:
        found = await export(client)
        assert [type(line).__name__ for line in found.lines] == ["HeaderLine", "PolicyLine", "TrailerLine"]
        assert (found.header.tenant.id, found.header.model, found.header.where) == (tenant, "hash", None)
        assert (found.trailer.memories, found.trailer.history, found.trailer.states) == (0, 0, {})
        assert found.trailer.records_sha256 == hashlib.sha256().hexdigest()

    async def test_every_field_of_a_memory_and_its_history_are_there_to_the_last_digit(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        metadata = {
            "big": 1e16,
            "tiny": 5e-324,
            "third": 0.1 + 0.2,
            "whole": 2**53 + 1,
            "nested": {"a": [1, None, "ü"]},
        }
        body = {
            "content": "Ünïcode \u0001 退款 🎉",
            "external_id": "order/1",
            "actor": "Ana",
            "scene": ["b", "a"],
            "source": "chat",
            "user_id": "ana",
            "agent_id": "concierge",
            "session_id": "s",
            "importance": 0.1,
            "priority": 4,
            "pinned": True,
            "metadata": metadata,
            "occurred_at": "2026-03-04T05:06:07.890123+02:00",
            "expires_at": "2099-01-01T00:00:00Z",
            "valid_from": "2026-03-04T05:06:07.890123+02:00",
            "valid_to": "2098-01-01T00:00:00Z",
        }
        made = (await client.post("/v1/memories", json=body)).json()
        await client.patch(f"/v1/memories/{made['id']}", json={"importance": 0.30000000000000004})
        async with database.tenant(tenant) as connection:
            await connection.execute(
                "UPDATE memory_usage SET access_count = 7, last_accessed_at = $2 WHERE tenant_id = $1", tenant, MOMENT
            )
        found = await export(client)
        [memory] = found.memories
        now = (await client.get(f"/v1/memories/{made['id']}")).json()
        line = json.loads(found.records[0])
        assert {name: line[name] for name in now if not name.startswith("index")} == {
            name: value for name, value in now.items() if not name.startswith("index")
        }
        assert memory.metadata == metadata
        assert type(memory.metadata["big"]) is float
        assert (memory.access_count, memory.last_accessed_at, memory.version) == (7, MOMENT, 2)
        assert (memory.occurred_given, memory.distinct) == (True, False)
        assert [(entry.version, entry.event, entry.changes) for entry in found.history] == [
            (1, "created", {}),
            (2, "updated", {"importance": 0.1}),
        ]

    async def test_forgotten_merged_and_expired_memories_are_in_it(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        first, second, third, fourth = await fill(client, 4)
        async with database.tenant(tenant) as connection:
            await connection.execute(
                "UPDATE memory SET state = 'forgotten', purge_at = $3 WHERE tenant_id = $1 AND id = $2",
                tenant, first, MOMENT,
            )  # fmt: skip
            await connection.execute(
                "UPDATE memory SET state = 'merged', merged_into = $3 WHERE tenant_id = $1 AND id = $2",
                tenant, second, fourth,
            )  # fmt: skip
            await connection.execute(
                "UPDATE memory SET expires_at = '2020-01-01' WHERE tenant_id = $1 AND id = $2", tenant, third
            )
        found = await export(client)
        assert found.ids == [first, second, third, fourth]
        assert [(memory.state, memory.purge_at, memory.merged_into) for memory in found.memories[:2]] == [
            ("forgotten", MOMENT, None),
            ("merged", None, fourth),
        ]
        assert found.trailer.states == {"active": 2, "forgotten": 1, "merged": 1}

    async def test_the_trailer_counts_the_lines_and_has_their_digest(self, client: httpx2.AsyncClient) -> None:
        await fill(client, 300)
        found = await export(client)
        assert (found.trailer.memories, found.trailer.history) == (300, 300)
        assert found.trailer.sha256 == hashlib.sha256(b"".join(found.raw[:-1])).hexdigest()
        assert found.trailer.records_sha256 == hashlib.sha256(b"".join(found.records)).hexdigest()
        assert (await export(client)).trailer.records_sha256 == found.trailer.records_sha256

    async def test_history_can_be_left_out(self, client: httpx2.AsyncClient) -> None:
        await fill(client, 3)
        found = await export(client, history="false")
        assert (len(found.memories), found.history, found.header.history) == (3, [], False)

    async def test_a_history_longer_than_a_page_is_whole_and_in_order(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        first, second, third = await fill(client, 3)
        async with database.tenant(tenant) as connection:
            await connection.execute(
                """
                INSERT INTO history (tenant_id, memory_id, version, event, key_id, request_id, changes)
                SELECT $1, $2, n, 'updated', 'k', 'r', jsonb_build_object('content', repeat('x', 100))
                FROM generate_series(2, 1205) AS n
                """,
                tenant,
                second,
            )
            await connection.execute(
                "UPDATE memory SET version = 1205 WHERE tenant_id = $1 AND id = $2", tenant, second
            )
        found = await export(client)
        assert found.ids == [first, second, third]
        assert [entry.version for entry in found.history if entry.memory_id == second] == list(range(1, 1206))
        order = [getattr(line, "memory_id", None) or getattr(line, "id", None) for line in found.lines[2:-1]]
        assert order == [first] * 2 + [second] * 1206 + [third] * 2
        assert found.trailer.history == 1207


class TestAPart:
    async def test_one_persons_memories_come_without_the_policy_and_without_what_was_anothers(
        self, client: httpx2.AsyncClient
    ) -> None:
        await fill(client, 3, user_id="bob")
        mine = await fill(client, 2, user_id="ana")
        moved = (await client.post("/v1/memories", json={"content": "secret of bob", "user_id": "bob"})).json()["id"]
        await client.patch(f"/v1/memories/{moved}", json={"user_id": "ana", "content": "hers now"})
        await client.patch(f"/v1/memories/{moved}", json={"content": "hers, edited"})
        found = await export(client, user_id="ana")
        assert found.ids == sorted([*mine, UUID(moved)])
        assert (found.policies, found.header.where) == ([], {"user_id": "ana"})
        assert [entry.changes for entry in found.history if str(entry.memory_id) == moved] == [{"content": "hers now"}]
        assert b"bob" not in found.body

    async def test_a_filter_of_any_kind_is_taken(self, client: httpx2.AsyncClient) -> None:
        await fill(client, 2, user_id="ana", priority=1)
        wanted = await fill(client, 2, text="wanted", user_id="ana", priority=5, metadata={"lang": "pt"})
        await fill(client, 2, user_id="bob", priority=5, metadata={"lang": "pt"})
        given = json.dumps({"priority": {"gt": 3}, "metadata.lang": "pt"})
        assert (await export(client, user_id="ana", filters=given)).ids == wanted

    @pytest.mark.parametrize(
        ("query", "pointer"),
        [
            ({"filters": "{"}, "filters"),
            ({"filters": '{"color": "red"}'}, "filters/color"),
            ({"filters": "[]"}, "filters"),
            ({"user_id": "a\0"}, "user_id"),
            ({"after": "x"}, "after"),
            ({"limit": "5"}, "limit"),
        ],
    )
    async def test_a_wrong_parameter_is_named(
        self, client: httpx2.AsyncClient, query: dict[str, str], pointer: str
    ) -> None:
        answer = await client.get("/v1/export", params=query)
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["errors"][0]["pointer"] == pointer


class TestWhoMay:
    async def test_a_key_without_the_scope_or_bound_is_refused(self, door: Door, tenant: TenantId) -> None:
        async with await door.client(tenant, scopes=["memories:read", "memories:write", "tenant:admin"]) as reader:
            assert (await reader.get("/v1/export")).status_code == 403
        async with await door.client(tenant, bind={"user_id": "ana"}) as bound:
            refused = await bound.get("/v1/export", params={"user_id": "ana"})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")

    async def test_nothing_of_another_tenant_and_no_key_is_in_it(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient
    ) -> None:
        await fill(other, 5, metadata={"theirs": True})
        await fill(client, 5)
        found = await export(client)
        assert len(found.memories) == 5
        assert b"theirs" not in found.body
        assert client.headers["Authorization"].removeprefix("Bearer ")[20:] not in found.body.decode()

    async def test_it_is_told_in_the_audit(self, client: httpx2.AsyncClient) -> None:
        await export(client, user_id="ana")
        [told] = (await client.get("/v1/audit", params={"action": "exportMemories"})).json()["results"]
        assert told["details"] == {"filtered": True, "history": True, "resumed": False}


class TestWhileOthersWrite:
    async def test_each_memory_that_stays_is_in_it_once_and_every_line_is_whole(
        self, client: httpx2.AsyncClient
    ) -> None:
        ids = await fill(client, 5000)
        doomed, edited = set(ids[::50]), ids[7::50]
        stop = asyncio.Event()

        async def delete() -> None:
            for memory_id in doomed:
                assert (await client.delete(f"/v1/memories/{memory_id}")).status_code == 204

        async def edit() -> None:
            for n, memory_id in enumerate(edited):
                body = {"importance": n % 10 / 10, "metadata": {"n": n}}
                assert (await client.patch(f"/v1/memories/{memory_id}", json=body)).status_code == 200

        async def write() -> None:
            n = 0
            while not stop.is_set():
                body = {"memories": [{"content": f"new {n} {m}"} for m in range(50)]}
                assert (await client.post("/v1/memories/batch", json=body)).status_code == 200
                n += 1

        writing = asyncio.create_task(write())
        changing = [asyncio.create_task(delete()), asyncio.create_task(edit())]
        try:
            found = await export(client)
            again = await export(client)
        finally:
            stop.set()
            await asyncio.gather(writing, *changing)
        for one in (found, again):
            assert len(one.ids) == len(set(one.ids))
            assert one.ids == sorted(one.ids)
            assert set(ids) - doomed <= set(one.ids)
            last = {memory.id: memory.version for memory in one.memories}
            assert all(entry.version <= last[entry.memory_id] for entry in one.history)
            kept = [memory for memory in one.memories if memory.id in set(edited)]
            written = [entry for entry in one.history if entry.memory_id in set(edited)]
            assert len(written) == sum(memory.version for memory in kept)
        assert len(again.ids) > 4900


class TestGoingOn:
    async def test_a_client_that_broke_off_goes_on_after_the_last_whole_memory(
        self, client: httpx2.AsyncClient
    ) -> None:
        ids = await fill(client, 2500)
        got = b""
        async with client.stream("GET", "/v1/export") as answer:
            async for piece in answer.aiter_bytes():
                got += piece
                if len(got) > 300_000:
                    break
        whole = got[: got.rindex(b"\n") + 1]
        lines = [json.loads(line) for line in whole.splitlines()]
        seen = [line["id"] for line in lines if line["kind"] == "memory"]
        assert 100 < len(seen) < 2500
        rest = await export(client, after=seen[-2])
        assert str(rest.header.after) == seen[-2]
        assert [*map(UUID, seen[:-1]), *rest.ids] == ids

    async def test_the_service_behind_may_restart_in_the_middle(self, client: httpx2.AsyncClient, door: Door) -> None:
        ids = await fill(client, 1500)
        got = b""
        async with client.stream("GET", "/v1/export") as answer:
            async for piece in answer.aiter_bytes():
                if not got:
                    door.retrieval.kill()
                    door.retrieval.start()  # in this thread, with which it would end
                got += piece
        assert Exported(got).ids == ids

    async def test_a_key_that_is_revoked_meanwhile_gets_no_trailer(
        self, client: httpx2.AsyncClient, door: Door, tenant: TenantId
    ) -> None:
        await fill(client, 5000, metadata={"filler": "x" * 2000})
        key_id = (await client.get("/v1/whoami")).json()["key_id"]
        got = bytearray()

        async def read() -> None:
            async with client.stream("GET", "/v1/export") as answer:
                async for piece in answer.aiter_bytes():
                    if not got:
                        async with door.admin as admin:
                            gone = await admin.delete(f"/admin/v1/tenants/{tenant}/keys/{key_id}")
                        assert gone.status_code == 204
                        await asyncio.sleep(1.5)  # as long as a gateway may trust a key
                    got.extend(piece)

        with pytest.raises(httpx2.HTTPError):
            await read()
        assert b'"kind":"trailer"' not in got

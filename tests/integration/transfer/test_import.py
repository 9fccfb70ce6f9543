"""An export that is taken back, whole or in pieces, by the tenant it is of or by another."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx2
import pytest
import uuid_utils.compat
from tests.integration.transfer.conftest import Door, as_line, export, fill
from tests.integration.transfer.lines import NDJSON, counts, header, memory, send, whole

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database
from memplane_core.testing.rows import eventually

pytestmark = pytest.mark.anyio


async def furnish(client: httpx2.AsyncClient, database: Database, tenant: TenantId) -> None:
    """Memories of every kind and state, some of them edited, and two sessions that hold something."""
    await fill(client, 700, user_id="ana", scene=["b", "a"], metadata={"big": 1e16, "n": [1, 2.5, None]})
    named = {"content": "named", "external_id": "x", "user_id": "bob", "expires_at": "2099-01-01T00:00:00Z"}
    dated = {"content": "dated", "occurred_at": "2020-02-03T04:05:06.789012Z", "actor": "bob", "source": "chat",
             "memory_type": "insight", "agent_id": "helper", "session_id": "s1", "pinned": True,
             "valid_from": "2020-02-03T00:00:00.000001Z", "valid_to": "2099-02-03T00:00:00Z"}  # fmt: skip
    seen = {**dated, "content": "seen", "scene": ["c"], "metadata": {"big": 1e16}, "importance": 0.0}
    for name in ("valid_from", "valid_to", "pinned"):
        del seen[name]
    for body in (seen, {"content": "heard", "session_id": "s2"}, {"content": "felt", "session_id": "s2"}):
        assert (await client.post("/v1/observations", json=body)).status_code == 201
    async with database.tenant(tenant) as connection:
        await connection.execute(
            "UPDATE observation SET strengthened = 2, unscored = true, user_id = 'ana' WHERE tenant_id = $1"
            " AND content = 'heard'",
            tenant,
        )
    body = [named, {"content": "twin"}, {"content": "twin", "on_duplicate": "create"}, dated]
    made = (await client.post("/v1/memories/batch", json={"memories": body})).json()["results"]
    for n in range(3):
        await client.patch(f"/v1/memories/{made[0]['id']}", json={"content": f"named {n}", "importance": n / 3})
    await client.post(f"/v1/memories/{made[1]['id']}/forget")
    async with database.tenant(tenant) as connection:
        await connection.execute(
            "UPDATE memory SET state = 'merged', merged_into = $3, purge_at = '2099-02-02 01:01:01.000001+00'"
            " WHERE tenant_id = $1 AND id = $2",
            tenant, UUID(made[2]["id"]), UUID(made[3]["id"]),
        )  # fmt: skip
        ledger: dict[str, Any] = {
            "own": {"scene": [], "importance": 0.1, "priority": 1, "last_accessed_at": "2026-01-01T00:00:00Z"},
            "made": {"scene": ["a"], "importance": 0.2, "priority": 2, "last_accessed_at": "2026-01-02T00:00:00Z"},
            "taken": [{"id": made[2]["id"], "uses": 3}],
        }
        await connection.execute(
            "UPDATE memory SET merges = $3, unscored = true, superseded_by = $4 WHERE tenant_id = $1 AND id = $2",
            tenant, UUID(made[3]["id"]), ledger, UUID(made[0]["id"]),
        )  # fmt: skip
        await connection.execute(
            "DELETE FROM memory_words WHERE tenant_id = $1 AND memory_id = $2", tenant, UUID(made[2]["id"])
        )
        await connection.execute("UPDATE history SET key_id = 'key ' || version WHERE tenant_id = $1", tenant)
        await connection.execute(
            "UPDATE memory_usage SET access_count = 12345678901, helpful = 3, not_helpful = 1, priority = 5,"
            " last_accessed_at = '2026-03-04 05:06:07.890123+00', moved_at = '2026-03-05 05:06:07.890123+00'"
            " WHERE tenant_id = $1 AND memory_id = $2",
            tenant, UUID(made[0]["id"]),
        )  # fmt: skip


class TestTheWholeWayRound:
    async def test_records_of_every_kind_come_out_byte_for_byte_as_they_went_in(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await furnish(client, database, tenant)
        before = await export(client)
        assert before.trailer.states == {"active": 702, "forgotten": 1, "merged": 1}
        answer = await send(other, before.body)
        assert answer.status_code == 200, answer.text
        assert counts(answer) == {"created": 704, "history": len(before.history), "observations": 3}
        after = await export(other)
        assert after.records == before.records
        assert after.trailer.records_sha256 == before.trailer.records_sha256
        assert (await export(client)).records == before.records  # whose rows have the same ids

    async def test_sent_again_it_changes_nothing_and_says_so(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await furnish(client, database, tenant)
        before = await export(client)
        await send(other, before.body)
        for target in (other, client):
            assert counts(await send(target, before.body)) == {"unchanged": 704, "observations_unchanged": 3}
        assert (await export(other)).records == before.records
        assert (await export(client)).records == before.records

    async def test_words_find_what_is_active_at_once_and_nothing_that_is_hidden(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient
    ) -> None:
        seen, forgotten, merged = (
            memory(content=f"a violin under the bridge {n}", **fields)
            for n, fields in enumerate(
                ({}, {"state": "forgotten"}, {"state": "merged", "merged_into": str(uuid_utils.compat.uuid7())})
            )
        )
        lines = [header(), *map(as_line, (seen, forgotten, merged))]
        assert counts(await send(other, whole(lines))) == {"created": 3}
        answer = await other.post("/v1/memories/search", json={"query": "violin", "mode": "lexical"})
        assert [found["id"] for found in answer.json()["results"]] == [seen["id"]]
        assert answer.json()["results"][0]["index_state"] == "pending"
        listed = (await other.get("/v1/memories")).json()["results"]
        assert [found["id"] for found in listed] == [seen["id"]]
        assert (await client.post("/v1/memories/search", json={"query": "violin"})).json()["results"] == []
        # What was hidden can be brought back here.
        back = await other.post(f"/v1/memories/{forgotten['id']}/restore")
        assert (back.status_code, back.json()["state"]) == (200, "active")
        answer = await other.post("/v1/memories/search", json={"query": "violin", "mode": "lexical"})
        assert {found["id"] for found in answer.json()["results"]} == {seen["id"], forgotten["id"]}


class TestWhatIsNotWhole:
    async def test_a_body_that_was_cut_off_is_told_with_what_is_stored_and_can_be_sent_again(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient
    ) -> None:
        ids = await fill(client, 300)
        before = await export(client)
        for cut in (len(before.body) // 2, len(before.body) - 5, before.body.rindex(b"\n", 0, -1) + 1):
            answer = await send(other, before.body[:cut])
            assert answer.status_code == 422, answer.text
            assert "send the whole again" in answer.json()["detail"]
            there = (await export(other)).ids
            assert there == ids[: len(there)]
        assert "a trailer must come last" in answer.json()["detail"]
        assert counts(await send(other, before.body)) == {"unchanged": 300}
        assert (await export(other)).records == before.records

    async def test_what_was_changed_in_it_is_told_by_its_digest(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient
    ) -> None:
        await fill(client, 3)
        before = await export(client)
        for tampered in (
            before.body.replace(b"memory number 1", b"memory number 7"),
            b"".join(raw for raw in before.raw if b"memory number 1" not in raw),
        ):
            answer = await send(other, tampered)
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["pointer"].endswith(("/sha256", "/memory_id"))

    async def test_a_trailer_that_counts_wrong_is_told(self, other: httpx2.AsyncClient) -> None:
        body = whole([header(), as_line(memory())]).replace(b'"memories": 1', b'"memories": 2')
        answer = await send(other, body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/lines/3/memories")

    async def test_a_client_that_goes_away_in_the_middle_can_send_it_again(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient
    ) -> None:
        await fill(client, 1500)
        before = await export(client)
        half = before.body[: len(before.body) // 2]

        async def breaking() -> AsyncIterator[bytes]:
            yield half
            await asyncio.sleep(0.2)
            raise ConnectionError

        with pytest.raises(ConnectionError):
            await other.post("/v1/import", content=breaking(), headers=NDJSON)
        answer = await send(other, before.body)
        assert answer.status_code == 200
        assert answer.json()["counts"]["created"] + answer.json()["counts"]["unchanged"] == 1500
        assert (await export(other)).records == before.records

    async def test_the_service_behind_may_be_killed_in_the_middle(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient, door: Door
    ) -> None:
        await fill(client, 1500)
        before = await export(client)

        async def sending() -> AsyncIterator[bytes]:
            third = len(before.body) // 3
            yield before.body[:third]
            await asyncio.sleep(0.1)
            door.retrieval.kill()
            yield before.body[third : 2 * third]
            door.retrieval.start()
            yield before.body[2 * third :]

        answer = await other.post("/v1/import", content=sending(), headers=NDJSON)
        assert answer.status_code == 200, answer.text
        assert answer.json()["counts"]["created"] + answer.json()["counts"]["unchanged"] == 1500
        assert (await export(other)).records == before.records


class TestWhoMay:
    async def test_a_key_without_the_scope_or_bound_is_refused(self, door: Door, tenant: TenantId) -> None:
        async with await door.client(tenant, scopes=["memories:read", "memories:write"]) as writer:
            assert (await send(writer, whole([header()]))).status_code == 403
        async with await door.client(tenant, bind={"user_id": "ana"}) as bound:
            assert (await send(bound, whole([header(), as_line(memory(user_id="ana"))]))).status_code == 403

    async def test_a_key_that_is_revoked_meanwhile_stores_no_more(self, door: Door, tenant: TenantId) -> None:
        lines = [header(), *[as_line(memory()) for _ in range(1200)]]
        async with await door.client(tenant) as doomed, await door.client(tenant) as client:
            key_id = (await doomed.get("/v1/whoami")).json()["key_id"]

            async def stored() -> int:
                return (await client.get("/v1/usage")).json()["stored_memories"]["used"]

            async def body() -> AsyncIterator[bytes]:
                yield b"".join(lines[:601])
                assert await eventually(stored, lambda many: many == 499) == 499
                assert (await client.delete(f"/v1/keys/{key_id}")).status_code == 204
                await asyncio.sleep(1.5)  # as long as a gateway may trust a key
                yield whole(lines).removeprefix(b"".join(lines[:601]))

            answer = await doomed.post("/v1/import", content=body(), headers=NDJSON)
            assert (answer.status_code, answer.json()["stored"]["created"]) == (401, 499)
            assert len((await export(client)).memories) == 499

    async def test_the_policy_is_taken_over_where_asked_by_who_may(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient, door: Door
    ) -> None:
        given = {"default_importance": 0.9, "preset": "dbgpt", "require_user": True}
        assert (await client.patch("/v1/policy", json=given)).status_code == 200
        before = await export(client)
        assert (await send(other, before.body)).json()["policy"] is False
        tenant = TenantId(UUID((await other.get("/v1/whoami")).json()["tenant_id"]))
        async with await door.client(tenant, scopes=["memories:admin"]) as lesser:
            assert (await send(lesser, before.body, policy="true")).status_code == 403
        assert (await send(other, before.body, policy="true")).json()["policy"] is True
        assert (await other.get("/v1/policy")).json() == (await client.get("/v1/policy")).json()

    async def test_a_policy_that_could_not_be_set_is_not_imported_either(self, other: httpx2.AsyncClient) -> None:
        before = (await other.get("/v1/policy")).json()
        for policy, pointer in (
            ({"weights": dict.fromkeys(before["weights"], 0)}, "weights"),
            ({"maintenance": {"priorities": {"thresholds": [3, 2, 1, 0]}}}, "maintenance/priorities/thresholds"),
        ):
            answer = await send(other, whole([header(), as_line({"kind": "policy", "policy": policy})]), policy="true")
            assert answer.status_code == 422, answer.text
            assert answer.json()["errors"][0]["pointer"] == f"/lines/2/policy/{pointer}"
        assert (await other.get("/v1/policy")).json() == before

    async def test_it_is_told_in_the_audit_when_it_begins_and_when_it_ends(self, other: httpx2.AsyncClient) -> None:
        await send(other, whole([header(), as_line(memory())]))
        await send(other, whole([header(), as_line(memory(priority=9))]))
        told = (await other.get("/v1/audit", params={"action": "importMemories"})).json()["results"]
        assert [entry["details"]["phase"] for entry in told] == ["stopped", "begun", "done", "begun"]
        assert told[2]["details"]["created"] == 1


class TestIdempotencyKeys:
    async def test_the_same_request_is_answered_again_and_another_is_refused(self, other: httpx2.AsyncClient) -> None:
        one = memory()
        body = whole([header(), as_line(one)])
        first = await send(other, body, key="import 1")
        assert (first.status_code, counts(first)) == (200, {"created": 1})
        again = await send(other, body, key="import 1")
        assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
        for refused in (
            await send(other, whole([header(), as_line(memory())]), key="import 1"),
            await send(other, body, key="import 1", on_conflict="overwrite"),
        ):
            assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")

    async def test_one_that_failed_may_be_sent_again_mended(self, other: httpx2.AsyncClient) -> None:
        failed = await send(other, whole([header(), as_line(memory(priority=9))]), key="import 2")
        assert failed.status_code == 422
        assert (await send(other, whole([header(), as_line(memory())]), key="import 2")).status_code == 200

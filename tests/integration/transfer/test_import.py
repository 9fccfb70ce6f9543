"""An export that is taken back, whole or in pieces, by the tenant it is of or by another."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import uuid_utils.compat
from tests.integration.transfer.conftest import Door, Exported, as_line, export, fill

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio

NDJSON = {"Content-Type": "application/x-ndjson"}


async def send(client: httpx2.AsyncClient, body: bytes, *, key: str | None = None, **query: Any) -> httpx2.Response:
    headers = NDJSON | ({"Idempotency-Key": key} if key else {})
    return await client.post("/v1/import", content=body, params=query, headers=headers)


def counts(answer: httpx2.Response) -> dict[str, int]:
    """What was done, leaving out what is 0."""
    body = answer.json()
    found = body["counts"] if answer.status_code == 200 else body["stored"]
    return {name: count for name, count in found.items() if count and name != "lines"}


def whole(lines: Iterable[bytes]) -> bytes:
    """These lines with a trailer that is right of them."""
    lines = list(lines)
    kinds = [json.loads(line)["kind"] for line in lines]
    memories, history = kinds.count("memory"), kinds.count("history")
    trailer = {"kind": "trailer", "memories": memories, "history": history, "states": {}}
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    return b"".join(lines) + as_line({**trailer, "records_sha256": digest, "sha256": digest})


def header(**fields: Any) -> bytes:
    given: dict[str, Any] = {
        "kind": "header",
        "format": "memplane-export",
        "version": 1,
        "tenant": {"id": str(uuid4()), "name": "elsewhere"},
        "exported_at": "2026-05-08T13:56:00Z",
        "model": "any",
        "dim": 3,
        "where": None,
        "history": True,
        "after": None,
    }
    return as_line(given | fields)


def memory(**fields: Any) -> dict[str, Any]:
    at = "2026-05-08T13:56:00.123456Z"
    given: dict[str, Any] = {
        "kind": "memory",
        "id": str(uuid_utils.compat.uuid7()),
        "external_id": None,
        "content": f"something {uuid4()}",
        "actor": None,
        "scene": [],
        "source": None,
        "memory_type": "experience",
        "user_id": None,
        "agent_id": None,
        "session_id": None,
        "importance": 0.5,
        "priority": 3,
        "pinned": False,
        "metadata": {},
        "occurred_at": at,
        "occurred_given": False,
        "distinct": False,
        "expires_at": None,
        "created_at": at,
        "updated_at": at,
        "last_accessed_at": at,
        "access_count": 0,
        "helpful": 0,
        "not_helpful": 0,
        "priority_moved_at": None,
        "unscored": False,
        "version": 1,
        "state": "active",
        "merged_into": None,
        "purge_at": None,
        "merges": None,
    }
    return given | fields


def entry(of: dict[str, Any], version: int = 1, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "kind": "history",
        "memory_id": of["id"],
        "version": version,
        "event": "created",
        "key_id": "k",
        "request_id": "r",
        "at": "2026-05-08T13:56:00.123456Z",
        "changes": {},
    }
    return given | fields


async def furnish(client: httpx2.AsyncClient, database: Database, tenant: TenantId) -> None:
    """Memories of every kind and state, some of them edited."""
    await fill(client, 700, user_id="ana", scene=["b", "a"], metadata={"big": 1e16, "n": [1, 2.5, None]})
    named = {"content": "named", "external_id": "x", "user_id": "bob", "expires_at": "2099-01-01T00:00:00Z"}
    body = [named, {"content": "twin"}, {"content": "twin", "on_duplicate": "create"}, {"content": "dated",
            "occurred_at": "2020-02-03T04:05:06.789012Z"}]  # fmt: skip
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
        ledger = {
            "own": {"scene": [], "importance": 0.1, "priority": 1, "last_accessed_at": "2026-01-01T00:00:00Z"},
            "made": {"scene": ["a"], "importance": 0.2, "priority": 2, "last_accessed_at": "2026-01-02T00:00:00Z"},
            "taken": [{"id": made[2]["id"], "uses": 3}],
        }
        await connection.execute(
            "UPDATE memory SET merges = $3 WHERE tenant_id = $1 AND id = $2", tenant, UUID(made[3]["id"]), ledger
        )
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
        assert counts(answer) == {"created": 704, "history": len(before.history)}
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
            assert counts(await send(target, before.body)) == {"unchanged": 704}
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

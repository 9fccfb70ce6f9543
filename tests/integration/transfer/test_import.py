"""An export that is taken back, whole or in pieces, by the tenant it is of or by another."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import UUID, uuid4

import httpx2
import psutil
import pytest
import uuid_utils.compat
from tests.integration.transfer.conftest import Door, as_line, export, fill

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
    trailer: dict[str, Any] = {"kind": "trailer", "memories": memories, "history": history, "states": {}}
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


def rss_of(door: Door) -> int:
    """Bytes of memory that the gateway's processes hold."""
    first = psutil.Process(door.gateway.pid)
    return sum(process.memory_info().rss for process in (first, *first.children(recursive=True)))


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
        ledger: dict[str, Any] = {
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


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        ("change", "pointer"),
        [
            ({"importance": 1.5}, "/importance"),
            ({"importance": "0.5"}, "/importance"),
            ({"priority": 6}, "/priority"),
            ({"content": ""}, "/content"),
            ({"content": "a\0b"}, "/content"),
            ({"content": "ü" * 16_385}, "/content"),
            ({"user_id": "x" * 257}, "/user_id"),
            ({"metadata": {"a": "\0"}}, "/metadata"),
            ({"metadata": {"a": "x" * 17_000}}, "/metadata"),
            ({"scene": ["a" * 129]}, "/scene/0"),
            ({"id": str(uuid4())}, "/id"),
            ({"id": "7"}, "/id"),
            ({"occurred_at": "2026-05-08T13:56:00"}, "/occurred_at"),
            ({"occurred_at": "0001-01-01T00:00:00+23:00"}, "/occurred_at"),
            ({"created_at": None}, "/created_at"),
            ({"version": 0}, "/version"),
            ({"access_count": -1}, "/access_count"),
            ({"state": "gone"}, "/state"),
            ({"merged_into": str(uuid4())}, "/merged_into"),
            ({"state": "merged"}, "/merged_into"),
            ({"purge_at": "2026-05-08T13:56:00Z"}, "/purge_at"),
            ({"external_id": "x", "distinct": True}, "/distinct"),
            ({"color": "red"}, "/color"),
            ({"kind": "memories"}, "/kind"),
            ({"merges": {"own": {}, "made": {}, "taken": []}}, "/merges/own/scene"),
        ],
    )
    async def test_a_field_is_named_with_its_line_and_what_stands_above_is_stored(
        self, other: httpx2.AsyncClient, change: dict[str, Any], pointer: str
    ) -> None:
        good, bad, after = memory(), memory(), memory()
        lines = [header(), *map(as_line, (good, entry(good), {**bad, **change}, after))]
        answer = await send(other, whole(lines))
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
        assert answer.json()["errors"][0]["pointer"] == f"/lines/4{pointer}"
        assert answer.json()["stored"] == {
            "lines": 3, "created": 1, "unchanged": 0, "overwritten": 0, "conflicts": 0, "history": 1
        }  # fmt: skip
        assert [str(found) for found in (await export(other)).ids] == [good["id"]]

    @pytest.mark.parametrize(
        ("raw", "detail"),
        [
            (b"", "JSON"),
            (b"{", "not valid JSON"),
            (b'{"kind": "memory", "importance": NaN}', "finite"),
            (b'{"kind": "memory", "content": "\\ud800"}', "surrogate"),
            (b'{"kind": "trailer", "kind": "memory"}', ""),
            (b"\xff\xfe", ""),
            (b'{"kind": "memory", "metadata": {"a": ' + b"[" * 100_000, "deep"),
            (b'{"id": 1}', "is required"),
            (b"null", ""),
        ],
    )
    async def test_a_line_that_is_no_json_of_ours_is_named(
        self, other: httpx2.AsyncClient, raw: bytes, detail: str
    ) -> None:
        lines = [header(), as_line(memory()), raw + b"\n"]
        answer = await send(other, b"".join(lines))
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"].startswith("/lines/3")
        assert detail in answer.json()["detail"]
        assert counts(answer) == {"created": 1}

    async def test_lines_must_stand_in_their_order(self, other: httpx2.AsyncClient) -> None:
        first, second = memory(), memory()
        policy = as_line({"kind": "policy", "policy": {}})
        for lines, pointer in (
            ([as_line(first)], "/lines/1/kind"),
            ([header(), header()], "/lines/2/kind"),
            ([header(), as_line(first), policy], "/lines/3/kind"),
            ([header(), as_line(second), as_line(first)], "/lines/3/id"),
            ([header(), as_line(second), as_line(second)], "/lines/3/id"),
            ([header(), as_line(first), as_line(entry(second))], "/lines/3/memory_id"),
            ([header(), as_line(first), as_line(entry(first, version=2))], "/lines/3/version"),
            ([header(), *[as_line(first), as_line(entry(first)), as_line(entry(first))]], "/lines/4/version"),
            ([whole([header()]), as_line(first)], "/lines/3"),
            ([header(version=2)], "/lines/1/version"),
            ([header(format="other")], "/lines/1/format"),
        ):
            answer = await send(other, b"".join(lines))
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text

    async def test_a_bad_line_in_the_middle_of_many_leaves_exactly_those_above_it(
        self, other: httpx2.AsyncClient
    ) -> None:
        memories = [memory() for _ in range(2500)]
        bad = {**memories[1700], "priority": 0}
        lines = [header(), *map(as_line, [*memories[:1700], bad, *memories[1701:]])]
        answer = await send(other, whole(lines))
        assert (answer.status_code, answer.json()["stored"]["lines"]) == (422, 1701)
        assert counts(answer) == {"created": 1700}
        assert [str(found) for found in (await export(other)).ids] == [one["id"] for one in memories[:1700]]
        mended = await send(other, whole([header(), *map(as_line, memories)]))
        assert counts(mended) == {"created": 800, "unchanged": 1700}

    async def test_an_endless_line_is_refused_before_it_fills_the_memory(
        self, other: httpx2.AsyncClient, door: Door
    ) -> None:
        sent, before = 0, rss_of(door)

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            yield header() + as_line(memory())
            while sent < 200_000_000:
                sent += 1_000_000
                yield b"x" * 1_000_000

        answer = await other.post("/v1/import", content=endless(), headers=NDJSON)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"] == [{"pointer": "/lines/3", "detail": "must be at most 8,388,608 bytes long"}]
        assert counts(answer) == {"created": 1}
        assert rss_of(door) < before + 60_000_000

    async def test_a_body_of_another_type_is_refused(self, other: httpx2.AsyncClient) -> None:
        answer = await other.post("/v1/import", content=b"{}", headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")

    @pytest.mark.parametrize("query", ["on_conflict=merge", "dry_run=perhaps", "force=true"])
    async def test_a_wrong_parameter_is_named(self, other: httpx2.AsyncClient, query: str) -> None:
        answer = await other.post(f"/v1/import?{query}", content=b"", headers=NDJSON)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, query.partition("=")[0])


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
        await fill(client, 3000)
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
        assert answer.json()["counts"]["created"] + answer.json()["counts"]["unchanged"] == 3000
        assert (await export(other)).records == before.records

    async def test_the_service_behind_may_be_killed_in_the_middle(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient, door: Door
    ) -> None:
        await fill(client, 3000)
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
        assert answer.json()["counts"]["created"] + answer.json()["counts"]["unchanged"] == 3000
        assert (await export(other)).records == before.records


class TestWhatIsThereAlready:
    async def test_another_content_stays_is_overwritten_or_ends_it_as_asked(self, other: httpx2.AsyncClient) -> None:
        first, second, third = (memory(user_id="ana", occurred_given=True) for _ in range(3))
        await send(other, whole([header(), *map(as_line, (first, second, third))]))
        edited = {**second, "content": "from the file", "user_id": "bob", "metadata": {"a": 1}, "version": 9}
        fourth = memory()
        body = whole([header(), *map(as_line, (first, edited, entry(edited, version=9), third, fourth))])

        failed = await send(other, body, on_conflict="fail")
        assert (failed.status_code, failed.json()["code"], failed.json()["id"]) == (409, "conflict", second["id"])
        assert failed.json()["errors"][0]["pointer"] == "/lines/3"
        assert counts(failed) == {"unchanged": 1}

        skipped = await send(other, body)
        assert counts(skipped) == {"created": 1, "unchanged": 2, "conflicts": 1}
        assert skipped.json()["conflicts"] == [
            {"line": 3, "id": second["id"], "reason": "changed", "other": second["id"]}
        ]
        assert (await other.get(f"/v1/memories/{second['id']}")).json()["content"] == second["content"]

        done = await send(other, body, on_conflict="overwrite")
        assert counts(done) == {"unchanged": 3, "overwritten": 1}
        now = (await other.get(f"/v1/memories/{second['id']}")).json()
        assert (now["content"], now["user_id"], now["version"]) == ("from the file", "bob", 2)
        [change] = (await other.get(f"/v1/memories/{second['id']}/history")).json()["results"]
        assert (change["version"], change["event"]) == (2, "updated")
        assert change["changes"] == {"content": second["content"], "user_id": "ana", "metadata": {}}
        assert counts(await send(other, body, on_conflict="overwrite")) == {"unchanged": 4}
        found = await other.post("/v1/memories/search", json={"query": "from the file", "mode": "lexical"})
        assert second["id"] in [one["id"] for one in found.json()["results"]]

    async def test_a_state_is_overwritten_both_ways(self, other: httpx2.AsyncClient) -> None:
        one = memory(content="a violin")
        purged = "2099-01-01T00:00:00Z"
        hidden = {**one, "state": "forgotten", "purge_at": purged}
        await send(other, whole([header(), as_line(one)]))
        assert counts(await send(other, whole([header(), as_line(hidden)]), on_conflict="overwrite")) == {
            "overwritten": 1
        }
        now = (await other.get(f"/v1/memories/{one['id']}")).json()
        assert (now["state"], now["purge_at"]) == ("forgotten", purged)
        search = {"query": "violin", "mode": "lexical"}
        assert (await other.post("/v1/memories/search", json=search)).json()["results"] == []
        await send(other, whole([header(), as_line(one)]), on_conflict="overwrite")
        found = (await other.post("/v1/memories/search", json=search)).json()["results"]
        assert [(memory["id"], memory["state"]) for memory in found] == [(one["id"], "active")]

    @pytest.mark.parametrize("on_conflict", ["skip", "overwrite", "fail"])
    async def test_a_name_or_an_equal_memory_of_another_id_is_a_conflict_that_names_it(
        self, other: httpx2.AsyncClient, on_conflict: str
    ) -> None:
        named = (await other.post("/v1/memories", json={"content": "a", "external_id": "x"})).json()["id"]
        equal = (await other.post("/v1/memories", json={"content": "b"})).json()["id"]
        lines = [
            memory(content="c", external_id="x"),
            memory(content="b", distinct=True),
            memory(content="b", distinct=False),
            memory(content="b", distinct=True, state="forgotten"),
        ]
        answer = await send(other, whole([header(), *map(as_line, lines)]), on_conflict=on_conflict)
        if on_conflict == "fail":
            assert (answer.status_code, answer.json()["id"]) == (409, named)
            return
        assert counts(answer) == {"created": 2, "conflicts": 2}
        assert [(found["line"], found["reason"], found["other"]) for found in answer.json()["conflicts"]] == [
            (2, "external_id", named),
            (3, "duplicate", equal),
        ]

    async def test_a_memory_that_was_deleted_comes_back_under_keys_that_the_index_never_had(
        self, other: httpx2.AsyncClient, database: Database
    ) -> None:
        one = memory()
        body = whole([header(), as_line(one)])
        await send(other, body)
        await other.patch(f"/v1/memories/{one['id']}", json={"content": "edited"})
        assert (await other.delete(f"/v1/memories/{one['id']}")).status_code == 204
        assert counts(await send(other, body)) == {"created": 1}
        tenant = TenantId(UUID((await other.get("/v1/whoami")).json()["tenant_id"]))
        async with database.tenant(tenant) as connection:
            rows = await connection.fetch(
                "SELECT op, rev FROM outbox WHERE tenant_id = $1 AND memory_id = $2 ORDER BY rev",
                tenant,
                UUID(one["id"]),
            )
        upserts = [row["rev"] for row in rows if row["op"] == "upsert"]
        assert upserts == [max(row["rev"] for row in rows if row["op"] == "delete") + 1]

    async def test_two_imports_of_one_file_at_once_store_it_once(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient
    ) -> None:
        await fill(client, 1500)
        before = await export(client)
        both = await asyncio.gather(*(send(other, before.body) for _ in range(2)))
        assert [answer.status_code for answer in both] == [200, 200]
        assert sum(answer.json()["counts"]["created"] for answer in both) == 1500
        assert sum(answer.json()["counts"]["history"] for answer in both) == 1500
        assert (await export(other)).records == before.records


class TestADryRun:
    async def test_it_counts_what_would_be_and_stores_nothing(self, other: httpx2.AsyncClient) -> None:
        named = (await other.post("/v1/memories", json={"content": "a", "external_id": "x"})).json()["id"]
        before = (await export(other)).records
        taken, new = memory(external_id="x"), memory()
        lines = [taken, new, entry(new)]
        body = whole([header(), *map(as_line, lines)])
        answer = await send(other, body, dry_run="true")
        assert answer.status_code == 200, answer.text
        assert answer.json()["dry_run"] is True
        assert counts(answer) == {"created": 1, "conflicts": 1, "history": 1}
        assert answer.json()["conflicts"][0]["other"] == named
        assert (await export(other)).records == before
        done = await send(other, body)
        assert counts(done) == counts(answer)

    async def test_a_bad_line_is_found(self, other: httpx2.AsyncClient) -> None:
        body = whole([header(), as_line(memory()), as_line(memory(priority=9))])
        answer = await send(other, body, dry_run="true")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/lines/3/priority")
        assert (await export(other)).memories == []


class TestQuotas:
    async def test_a_full_quota_stops_it_and_what_is_stored_is_told(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient, door: Door
    ) -> None:
        await fill(client, 1600)
        before = await export(client, history="false")
        tenant = (await other.get("/v1/whoami")).json()["tenant_id"]
        async with door.admin as admin:
            limits = await admin.patch(f"/admin/v1/tenants/{tenant}/limits", json={"stored_memories": 1200})
            assert limits.status_code == 200
            answer = await send(other, before.body)
            assert (answer.status_code, answer.json()["code"]) == (403, "quota_exceeded"), answer.text
            stored = answer.json()["stored"]
            assert (answer.json()["quota"], answer.json()["limit"]) == ("stored_memories", 1200)
            assert stored["created"] == len((await export(other)).memories) > 0
            await admin.patch(f"/admin/v1/tenants/{tenant}/limits", json={"stored_memories": 1600})
        rest = await send(other, before.body)
        assert counts(rest) == {"created": 1600 - stored["created"], "unchanged": stored["created"]}

    async def test_a_body_limit_is_for_other_routes_and_tokens_are_charged(
        self, client: httpx2.AsyncClient, other: httpx2.AsyncClient, door: Door
    ) -> None:
        await fill(client, 100)
        before = await export(client)
        who = (await other.get("/v1/whoami")).json()["tenant_id"]
        async with door.admin as admin:
            await admin.patch(f"/admin/v1/tenants/{who}/limits", json={"body_bytes": 1024, "tokens_a_day": 100_000})
        assert counts(await send(other, before.body))["created"] == 100
        used = (await other.get("/v1/usage")).json()
        assert sum(day["tokens"] for day in used["days"]) == 100 * (len("memory number 10") // 4 + 1) - 10
        async with door.admin as admin:
            await admin.patch(f"/admin/v1/tenants/{who}/limits", json={"tokens_a_day": 1})
        refused = await send(other, whole([header(), as_line(memory())]))
        assert (refused.status_code, refused.json()["quota"]) == (403, "tokens_a_day")


class TestWhoMay:
    async def test_a_key_without_the_scope_or_bound_is_refused(self, door: Door, tenant: TenantId) -> None:
        async with await door.client(tenant, scopes=["memories:read", "memories:write"]) as writer:
            assert (await send(writer, whole([header()]))).status_code == 403
        async with await door.client(tenant, bind={"user_id": "ana"}) as bound:
            assert (await send(bound, whole([header(), as_line(memory(user_id="ana"))]))).status_code == 403

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

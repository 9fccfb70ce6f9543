"""Imports into what is there already, and where there is no room."""

import asyncio
from uuid import UUID

import httpx2
import pytest
from tests.integration.transfer.conftest import Door, as_line, export, fill
from tests.integration.transfer.lines import counts, entry, header, memory, send, whole

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio


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

    async def test_one_that_stays_takes_no_history_from_the_file_in_whatever_part_that_comes(
        self, other: httpx2.AsyncClient
    ) -> None:
        before = [memory() for _ in range(498)]
        ours = memory(version=2)
        await send(other, whole([header(), as_line(ours)]))
        theirs = {**ours, "content": "another"}
        lines = [header(), *map(as_line, before), as_line(theirs)]  # a part of 500 lines
        entries = [as_line(entry(theirs, version=version)) for version in (1, 2)]
        answer = await send(other, whole([*lines, *entries]))
        assert counts(answer) == {"created": 498, "conflicts": 1}
        assert (await other.get(f"/v1/memories/{ours['id']}/history")).json()["results"] == []

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

    async def test_an_expired_memory_that_is_equal_stands_in_nobodys_way(
        self, other: httpx2.AsyncClient, database: Database
    ) -> None:
        equal = (await other.post("/v1/memories", json={"content": "b"})).json()["id"]
        tenant = TenantId(UUID((await other.get("/v1/whoami")).json()["tenant_id"]))
        async with database.tenant(tenant) as connection:
            await connection.execute(
                "UPDATE memory SET expires_at = '2020-01-01' WHERE tenant_id = $1 AND id = $2", tenant, UUID(equal)
            )
        one = memory(content="b", distinct=True)
        body = whole([header(), as_line(one)])
        assert counts(await send(other, body, dry_run="true")) == {"created": 1}
        assert counts(await send(other, body)) == {"created": 1}
        assert (await other.post("/v1/memories", json={"content": "b"})).json()["id"] == one["id"]
        # Nor in the way of one that is changed into it.
        third = memory(content="c", distinct=True)
        await send(other, whole([header(), as_line(third)]))
        async with database.tenant(tenant) as connection:
            await connection.execute(
                "UPDATE memory SET expires_at = '2020-01-01' WHERE tenant_id = $1 AND id = $2", tenant, UUID(one["id"])
            )
        body = whole([header(), as_line({**third, "content": "b"})])
        assert counts(await send(other, body, on_conflict="overwrite")) == {"overwritten": 1}
        assert (await other.post("/v1/memories", json={"content": "b"})).json()["id"] == third["id"]

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

    async def test_it_foresees_what_cannot_be_overwritten(self, other: httpx2.AsyncClient) -> None:
        first, second = (memory(content=text, distinct=True) for text in ("one", "two"))
        await send(other, whole([header(), as_line(first), as_line(second)]))
        body = whole([header(), as_line({**first, "content": "two"}), as_line({**second, "priority": 5})])
        foreseen = await send(other, body, dry_run="true", on_conflict="overwrite")
        assert counts(foreseen) == {"overwritten": 1, "conflicts": 1}
        done = await send(other, body, on_conflict="overwrite")
        assert (counts(done), done.json()["conflicts"]) == (counts(foreseen), foreseen.json()["conflicts"])

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

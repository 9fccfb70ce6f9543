"""Imports over memories that were merged here, or that the file says were merged."""

from typing import Any

import httpx2
import pytest
from tests.integration.transfer.conftest import as_line, export
from tests.integration.transfer.lines import counts, header, memory, send, whole

pytestmark = pytest.mark.anyio

_ASIDE = frozenset(("version", "updated_at", "index_state", "index_error", "last_accessed_at"))


async def write(client: httpx2.AsyncClient, content: str, **fields: Any) -> str:
    answer = await client.post("/v1/memories", json={"content": content, **fields})
    assert answer.status_code in (201, 202), answer.text
    return answer.json()["id"]


async def read(client: httpx2.AsyncClient, *ids: str) -> list[dict[str, Any]]:
    """Memories but for what grows with every change, and when they were used last, which an import leaves alone."""
    found = [(await client.get(f"/v1/memories/{memory_id}")).json() for memory_id in ids]
    return [{name: value for name, value in its.items() if name not in _ASIDE} for its in found]


async def merge(client: httpx2.AsyncClient, survivor: str, *others: str) -> None:
    answer = await client.post("/v1/memories/merge", json={"ids": [survivor, *others], "survivor": survivor})
    assert answer.status_code == 200, answer.text


async def undo(client: httpx2.AsyncClient, survivor: str) -> list[str]:
    answer = await client.post("/v1/memories/merge/undo", json={"survivor": survivor})
    assert answer.status_code == 200, answer.text
    return answer.json()["restored"]


async def three(client: httpx2.AsyncClient) -> tuple[str, str, str]:
    first = await write(client, "one", scene=["a"], importance=0.2, priority=2)
    second = await write(client, "two", scene=["b"], importance=0.9)
    return first, second, await write(client, "three", scene=["c"], priority=5)


class TestWhatTheFileSaysWasMerged:
    async def test_can_be_undone_where_it_was_not_merged_here_any_more(self, client: httpx2.AsyncClient) -> None:
        ids = await three(client)
        before = await read(client, *ids)
        await merge(client, *ids)
        merged = await read(client, *ids)
        file = await export(client)
        await undo(client, ids[0])
        assert counts(await send(client, file.body, on_conflict="overwrite"))["overwritten"] == 3
        now = await read(client, *ids)
        assert (now[0], [its["merged_into"] for its in now]) == (merged[0], [None, ids[0], ids[0]])
        again = await export(client)
        assert counts(await send(client, file.body, on_conflict="overwrite")) == {"unchanged": 3}
        assert (await export(client)).records == again.records
        assert await undo(client, ids[0]) == sorted(ids[1:])
        assert await read(client, *ids) == before

    async def test_into_another_one_than_here_is_given_back_by_that(self, client: httpx2.AsyncClient) -> None:
        first, second, third = await three(client)
        before = await read(client, first, second, third)
        await merge(client, first, third)
        file = await export(client)
        await undo(client, first)
        await merge(client, second, third)
        assert counts(await send(client, file.body, on_conflict="overwrite"))["overwritten"] == 3
        assert await undo(client, second) == []
        assert await undo(client, first) == [third]
        assert await read(client, first, second, third) == before

    async def test_brings_nothing_where_the_survivor_here_stays(self, client: httpx2.AsyncClient) -> None:
        """Who is not overwritten gives nothing back that it has not taken."""
        first, second, _ = await three(client)
        await merge(client, first, second)
        file = await export(client)
        await undo(client, first)
        await client.patch(f"/v1/memories/{first}", json={"content": "another", "scene": ["b", "z"]})
        before = await read(client, first, second)
        assert counts(await send(client, file.body))["conflicts"] == 2
        assert await undo(client, first) == []
        assert await read(client, first, second) == before


class TestWhatWasMergedHere:
    async def test_is_by_itself_again_where_the_file_is_of_before(self, client: httpx2.AsyncClient) -> None:
        ids = await three(client)
        before, file = await read(client, *ids), await export(client)
        await merge(client, *ids)
        assert counts(await send(client, file.body, on_conflict="overwrite"))["overwritten"] == 3
        assert await read(client, *ids) == before
        assert await undo(client, ids[0]) == []
        assert counts(await send(client, file.body, on_conflict="overwrite")) == {"unchanged": 3}
        await merge(client, *ids)
        await undo(client, ids[0])
        assert await read(client, *ids) == before

    async def test_takes_nothing_with_it_that_the_file_says_is_the_survivors_own(
        self, client: httpx2.AsyncClient
    ) -> None:
        """The file has what the merge made, said by somebody, and nothing of the merge."""
        first, second, _ = await three(client)
        await merge(client, first, second)
        survivor = next(raw for raw in (await export(client)).records if f'"id":"{first}"'.encode() in raw)
        start = survivor.index(b'"merges":{')
        alone = survivor[:start] + b'"merges":null' + survivor[survivor.index(b"]}", start) + 2 :]
        assert counts(await send(client, whole([header(), alone]), on_conflict="overwrite")) == {"unchanged": 1}
        [told] = await read(client, first)
        assert await undo(client, first) == [second]
        assert await read(client, first) == [told]


async def test_a_ring_of_merges_can_be_restored(other: httpx2.AsyncClient) -> None:
    """No merge makes one, and a file can hold anything."""
    ledger: dict[str, Any] = {
        name: {"scene": [], "importance": 0.5, "priority": 3, "last_accessed_at": "2026-05-08T13:56:00.123456Z"}
        for name in ("own", "made")
    }
    lines = [memory(state="merged", merged_into="") for _ in range(3)]
    for line, into in zip(lines, [*lines[1:], lines[0]], strict=True):
        line["merged_into"] = into["id"]
        into["merges"] = {**ledger, "taken": [{"id": line["id"], "uses": 1}]}
    assert counts(await send(other, whole([header(), *map(as_line, lines)]))) == {"created": 3}
    for line in lines:
        back = await other.post(f"/v1/memories/{line['id']}/restore", timeout=10)
        assert (back.status_code, back.json()["state"]) == (200, "active")
    assert await undo(other, lines[0]["id"]) == []

"""Lines that cannot be taken: which, why, and what stands above them."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import psutil
import pytest
from tests.integration.transfer.conftest import Door, as_line, export
from tests.integration.transfer.lines import NDJSON, counts, entry, header, memory, send, whole

pytestmark = pytest.mark.anyio


def rss_of(door: Door) -> int:
    """Bytes of memory that the gateway's processes hold."""
    first = psutil.Process(door.gateway.pid)
    return sum(process.memory_info().rss for process in (first, *first.children(recursive=True)))


OWN: dict[str, Any] = {"scene": [], "importance": 0.5, "priority": 3, "last_accessed_at": "2026-05-08T13:56:00Z"}


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
            ({"valid_from": "2026-01-01T00:00:00Z", "valid_to": "2026-01-01T00:00:00Z"}, "/valid_to"),
            ({"superseded_by": str(uuid4())}, "/superseded_by"),
            ({"purge_at": "2026-05-08T13:56:00Z"}, "/purge_at"),
            ({"external_id": "x", "distinct": True}, "/distinct"),
            ({"color": "red"}, "/color"),
            ({"kind": "memories"}, "/kind"),
            ({"merges": {"own": {}, "made": {}, "taken": []}}, "/merges/own/scene"),
            (
                {"merges": {"own": {**OWN, "last_accessed_at": "0001-01-01T00:00:00+14:00"}, "made": OWN, "taken": []}},
                "/merges/own/last_accessed_at",
            ),
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
            "lines": 3, "created": 1, "unchanged": 0, "overwritten": 0, "conflicts": 0, "history": 1,
            "observations": 0, "observations_unchanged": 0,
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
        memories = [memory() for _ in range(1200)]
        bad = {**memories[700], "priority": 0}
        lines = [header(), *map(as_line, [*memories[:700], bad, *memories[701:]])]
        answer = await send(other, whole(lines))
        assert (answer.status_code, answer.json()["stored"]["lines"]) == (422, 701)
        assert counts(answer) == {"created": 700}
        assert [str(found) for found in (await export(other)).ids] == [one["id"] for one in memories[:700]]
        mended = await send(other, whole([header(), *map(as_line, memories)]))
        assert counts(mended) == {"created": 500, "unchanged": 700}

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

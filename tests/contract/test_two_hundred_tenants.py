"""Two hundred tenants whose data look alike, and every route that reads: nobody is ever told of anybody else.

All have the same users, agents, sessions and external ids; what differs is a mark in their texts and names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec
import pytest
from tests.contract.conftest import Installation, Tenant
from tests.contract.described import Document, Json, Operation, Request, pages_of

from memplane_core.domain.tenancy import SCOPES

COUNT: Final = 200

_MARK: Final = re.compile(r"mark\d{3}x")
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

# What must have shown something of the asker's own, or nothing would be proved by its silence about others.
MUST_SHOW: Final = {
    *("searchMemories", "packContext", "listMemories", "listMatchingMemories", "getMemory", "getMemoryHistory"),
    *("exportMemories", "listJobs", "getJob", "listErasures", "getErasure", "listOwnKeys", "listOwnAudit"),
    *("getUsage", "whoAmI"),
}


class Dweller(msgspec.Struct, frozen=True):
    """A tenant, its mark, and what it has.

    Attributes:
        ids: Values of the parameters in paths, by operation.
        memories: Ids of its memories.
        told: All ids that it was told while it moved in.
        cursors: Of its second pages, by operation; a few keep them for all others to try.
    """

    tenant: Tenant
    mark: str
    ids: Mapping[str, Mapping[str, str]]
    memories: list[str]
    told: frozenset[str]
    cursors: Mapping[str, str]


def reading(document: Document) -> list[Operation]:
    return [operation for operation in document.of_tenants if operation.reads]


def move_in(installation: Installation, number: int) -> Dweller:
    """Make the tenant `number`, with three memories and some of everything that can be read."""
    mark = f"mark{number:03}x"
    made = installation.admin("POST", "/admin/v1/tenants", json={"name": f"{mark} {installation.database}"})
    id_: str = made.raise_for_status().json()["id"]
    key = installation.make_key(id_, *sorted(SCOPES), name=mark)
    tenant = Tenant(id_, f"{mark} {installation.database}", key["key"], key["id"])
    told = [id_, key["id"]]

    def send(method: str, path: str, body: Json) -> Json:
        headers = {"Authorization": f"Bearer {tenant.key}"}
        answer = installation.base.request(method, path, json=body, headers=headers).raise_for_status()
        told.extend(_ID.findall(answer.text))
        return cast("Json", answer.json())

    batch = [
        {
            "content": f"Ana keeps the {mark} of the harbour in drawer {nth}.",
            "external_id": f"note-{nth}",
            "actor": "Ana",
            "user_id": "ana",
            "agent_id": "concierge",
            "session_id": "2026-05-08",
            "scene": ["harbour"],
            "metadata": {"mark": mark},
        }
        for nth in range(3)
    ]
    memories = [one["id"] for one in send("POST", "/v1/memories/batch", {"memories": batch})["results"]]
    send("PATCH", f"/v1/memories/{memories[0]}", {"content": f"Ana keeps the {mark} of the harbour at home."})
    things = installation.things(tenant)
    things.known |= {"memory_id": memories[0], "memory_id 2": memories[1]}
    operations = reading(installation.document)
    ids = {operation.id: things.ids(operation) for operation in operations}
    told += [value for name, value in things.known.items() if name != "tenant_id"]
    cursors = dict(second_pages(installation, tenant, ids)) if number % 50 == 0 else {}
    return Dweller(tenant, mark, ids, memories, frozenset(told), cursors)


def second_pages(
    installation: Installation, tenant: Tenant, ids: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str]]:
    """Where the pages after the first begin, by operation, for those that have any."""
    for operation in pages_of(reading(installation.document)):
        for request in requests_of(installation.document, operation, ids[operation.id], ["", ""]):
            query = {**request.query, "limit": "1"}
            answer = installation.send(msgspec.structs.replace(request, query=query), tenant.key)
            cursor: str | None = answer.raise_for_status().json()["next_cursor"]
            if cursor is not None:
                yield operation.id, cursor


def requests_of(
    document: Document, operation: Operation, ids: Mapping[str, str], memories: list[str]
) -> Iterator[Request]:
    """What is asked of a route: as its example does, for all there is, and for each of several kinds of things."""
    example = document.request(operation, ids, memories=memories)
    for one in operation.described.get("parameters", []):
        if one["in"] == "query" and one.get("required"):
            for value in one["schema"].get("enum", []):
                yield msgspec.structs.replace(example, query={**example.query, one["name"]: value})
            return
    yield example
    match operation.id:
        case "searchMemories":
            for mode in ("hybrid", "dense", "lexical"):
                yield body(example, {"query": "Who keeps what of the harbour?", "mode": mode, "top_k": 1000})
            yield body(example, {"query": "harbour", "filters": {"id": {"in": memories}}})  # the last one names ids
        case "packContext":
            yield body(example, {"query": "Who keeps what of the harbour?", "max_tokens": 100_000, "top_k": 1000})
        case "listMatchingMemories":
            yield body(example, {"limit": 1000})
            yield body(example, {"filters": {"OR": [{"id": {"in": memories}}, {"scene": "nowhere"}]}})
        case _:
            pass


def body(request: Request, value: Json) -> Request:
    return msgspec.structs.replace(request, content=msgspec.json.encode(value))


class Answer(msgspec.Struct, frozen=True):
    """As much of an answer as is looked at."""

    status: int
    text: str


class Line(HTTPConnection):
    """A connection of one thread: the client that other tests use costs more than all services together."""

    def send_as(self, dweller: Dweller, asked: Request) -> Answer:
        """The answer to a request of one of them."""
        path = f"{asked.path}?{urlencode(asked.query)}" if asked.query else asked.path
        headers = {**asked.headers, "Authorization": f"Bearer {dweller.tenant.key}"}
        self.request(asked.method, path, body=asked.content, headers=headers)
        answer = self.getresponse()
        return Answer(answer.status, answer.read().decode())


class Town:
    """All of them, and what each was told that it must not be."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        with ThreadPoolExecutor(4) as threads:
            self.dwellers = list(threads.map(partial(move_in, installation), range(COUNT)))
        self._everybodys = frozenset[str]().union(*(dweller.told for dweller in self.dwellers))
        self.showed: set[str] = set()
        self.answers = 0

    def look_around(self, numbers: Sequence[int]) -> list[str]:
        """What is wrong with the answers to some of them, asking for their own and for others' things."""
        with closing(Line(self._installation.url.removeprefix("http://"), timeout=60)) as line:
            return [fault for number in numbers for fault in self._look_around(number, line)]

    def _look_around(self, number: int, line: Line) -> list[str]:
        own, other = self.dwellers[number], self.dwellers[number - 1]
        document = self._installation.document
        wrong: list[str] = []
        for operation in reading(document):
            for request in requests_of(document, operation, own.ids[operation.id], own.memories):
                wrong += self._own(own, operation, line.send_as(own, request))
            if operation.ids:
                asked = document.request(operation, other.ids[operation.id], memories=other.memories)
                answer = line.send_as(own, asked)
                if answer.status != 404:
                    wrong.append(f"{operation} with another's ids: {answer.status} {answer.text}")
            for request in self._foreign(operation, own, other):
                wrong += self._told(own, operation, line.send_as(own, request))
        return wrong

    def _foreign(self, operation: Operation, own: Dweller, other: Dweller) -> Iterator[Request]:
        """Requests that name what belongs to others in their bodies, and go on where others' pages ended."""
        document = self._installation.document
        if operation.method == "POST":
            *_, last = requests_of(document, operation, {}, other.memories)
            yield last
        with_pages = next(one for one in self.dwellers if one.cursors and one is not own)
        if (cursor := with_pages.cursors.get(operation.id)) is not None:
            asked = next(requests_of(document, operation, own.ids[operation.id], own.memories))
            yield msgspec.structs.replace(asked, query={**asked.query, "limit": "1", "cursor": cursor})

    def _own(self, own: Dweller, operation: Operation, answer: Answer) -> list[str]:
        self.answers += 1
        if answer.status != 200:
            return [f"{operation}: {answer.status} {answer.text}"]
        if own.mark in answer.text or not own.told.isdisjoint(_ID.findall(answer.text)):
            self.showed.add(operation.id)
        return self._told(own, operation, answer)

    def _told(self, own: Dweller, operation: Operation, answer: Answer) -> list[str]:
        if answer.status >= 400:
            return []
        foreign = {*_MARK.findall(answer.text)} - {own.mark}
        foreign |= {*_ID.findall(answer.text)} & self._everybodys - own.told
        return [f"{operation} tells {own.mark} of {sorted(foreign)[:3]}: {answer.text[:200]}"] if foreign else []


@pytest.fixture(scope="module")
def town(installation: Installation) -> Town:
    return Town(installation)


def test_none_is_told_of_another_on_any_route_that_reads(town: Town) -> None:
    shares = [range(first, COUNT, 4) for first in range(4)]
    with ThreadPoolExecutor(4) as threads:
        wrong = [fault for faults in threads.map(town.look_around, shares) for fault in faults]
    assert wrong == []
    assert MUST_SHOW - town.showed == set()
    assert town.answers > 20 * COUNT


def test_everyone_finds_all_of_its_own_and_only_that(town: Town, installation: Installation) -> None:
    headers: dict[str, Any] = {}
    for dweller in town.dwellers[:: COUNT // 10]:
        headers["Authorization"] = f"Bearer {dweller.tenant.key}"
        asked = {"query": "harbour", "top_k": 1000, "touch": False}
        found = installation.base.post("/v1/memories/search", json=asked, headers=headers).raise_for_status().json()
        assert {one["id"] for one in found["results"]} == set(dweller.memories)

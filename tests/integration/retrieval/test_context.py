"""Blocks for prompts through the service: what they hold, how they look, and what they leave behind."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx2
import pytest
from redis.asyncio import Redis
from tests.integration.retrieval.conftest import Service

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.policies import change_policy
from memplane_retrieval.touches import Touches

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

PLAIN = {"header": "", "group": "", "memory": "[$n] $date $who$content"}


async def _write(client: httpx2.AsyncClient, content: str, **fields: Any) -> str:
    response = await client.post("/v1/memories", json={"content": content, **fields})
    assert response.status_code == 201, response.text
    return response.json()["id"]


async def _packed(client: httpx2.AsyncClient, query: str, **more: Any) -> Json:
    response = await client.post("/v1/context", json={"query": query, **more})
    assert response.status_code == 200, response.text
    return response.json()


class TestBlock:
    async def test_the_best_come_first_grouped_dated_and_with_their_ids(self, client: httpx2.AsyncClient) -> None:
        at = "2026-05-08T13:56:00Z"
        tea = await _write(client, "Ana drinks green tea in the morning", actor="Ana", occurred_at=at)
        _bus = await _write(client, "the bus was late", occurred_at=at)
        rule = await _write(client, "offer Ana green tea", memory_type="insight", occurred_at=at)
        block = await _packed(client, "green tea", filters={"occurred_at": at}, min_relevance=0.3)
        assert block["degraded"] == []
        lines = block["text"].split("\n")
        assert lines[0].startswith("What is remembered")
        assert sorted(lines[1:]) == sorted(
            [
                "## experience",
                f"[{_n(block, tea)}] 2026-05-08 Ana: Ana drinks green tea in the morning",
                "## insight",
                f"[{_n(block, rule)}] 2026-05-08 offer Ana green tea",
            ]
        )
        assert [item["id"] for item in sorted(block["items"], key=lambda item: -item["score"])] == [
            item["id"] for item in sorted(block["items"], key=lambda item: item["n"])
        ]

    async def test_it_keeps_to_the_budget_and_cuts_only_when_asked(self, client: httpx2.AsyncClient) -> None:
        for n in range(20):
            await _write(client, f"fact {n} about tea: " + "leaves and water " * n)
        for budget in (1, 30, 200, 2_000):
            for counter in ("estimate", "bytes"):
                block = await _packed(client, "tea", max_tokens=budget, counter=counter, allow_truncation=budget == 200)
                assert block["tokens"] <= budget
                assert block["counter"] == counter
                assert len(block["items"]) + block["left_out"] == 20
                cut = [item for item in block["items"] if item["truncated"]]
                assert len(cut) <= (budget == 200)

    async def test_it_holds_what_held_then(self, client: httpx2.AsyncClient) -> None:
        paris = await _write(client, "Ana lives in Paris")
        await _write(client, "Ana lives in Lyon", supersedes=paris, valid_from="2026-03-01T00:00:00Z")
        now = await _packed(client, "Ana lives", template=PLAIN)
        assert now["text"].endswith("Lyon")
        then = await _packed(client, "Ana lives", template=PLAIN, valid_at="2025-01-01T00:00:00Z")
        assert then["text"].endswith("Paris")

    async def test_only_what_is_given_counts_as_used(self, service: Service) -> None:
        noted = _Noted(Redis.from_url("redis://127.0.0.1:1/0"))
        service.touches = noted
        async with service.running() as client:
            short = await _write(client, "green tea")
            await _write(client, "green tea " * 200)
            block = await _packed(client, "green tea", max_tokens=60)
            assert [item["id"] for item in block["items"]] == [short]
            assert noted.ids == [short]
            await _packed(client, "green tea", touch=False)
            assert noted.ids == [short]


class TestShortTerm:
    async def test_what_the_session_holds_comes_first_in_order_and_nothing_twice(
        self, client: httpx2.AsyncClient
    ) -> None:
        session = {"session_id": "s", "user_id": "ana"}
        old = await _write(client, "green tea is what Ana drinks", user_id="ana")
        for n in range(7):  # two more than a session holds by default
            answer = await client.post("/v1/observations", json={**session, "content": f"said tea number {n}"})
            assert answer.status_code == 201, answer.text
        block = await _packed(
            client, "tea", filters={"user_id": "ana"}, include_short_term=session,
            template={"header": "", "group": "## $group", "memory": "$content"},
        )  # fmt: skip
        lines = block["text"].split("\n")
        assert lines[:7] == ["## this session", *(f"said tea number {n}" for n in range(2, 7)), "## experience"]
        assert sorted(lines[7:]) == ["green tea is what Ana drinks", "said tea number 0", "said tea number 1"]
        kinds = [item["kind"] for item in block["items"]]
        assert kinds == ["observation"] * 5 + ["memory"] * 3
        assert {item["id"] for item in block["items"] if item["score"] is not None} > {old}

    async def test_the_newest_have_a_share_and_leave_the_rest(self, client: httpx2.AsyncClient) -> None:
        session = {"session_id": "s"}
        await _write(client, "tea " * 10)
        for n in range(4):
            await client.post("/v1/observations", json={**session, "content": f"tea{n} " * 3})
        plain = {"header": "", "group": "", "memory": "$content"}
        asked = {"template": plain, "max_tokens": 45, "include_short_term": session, "counter": "bytes"}
        block = await _packed(client, "tea", **asked, short_term_share=0.8)
        assert block["text"] == "tea2 tea2 tea2 \ntea3 tea3 tea3 "
        block = await _packed(client, "tea", **{**asked, "max_tokens": 60}, short_term_share=0.25)
        assert block["text"] == "tea3 tea3 tea3 \n" + "tea " * 10

    async def test_a_session_that_none_can_be_is_refused(self, client: httpx2.AsyncClient) -> None:
        answer = await client.post("/v1/context", json={"query": "x", "include_short_term": {"session_id": "s\0"}})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == "/include_short_term/session_id"


class _Noted(Touches):
    """Keeps what it is told."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.ids: list[str] = []

    def add(self, tenant: TenantId, ids: Sequence[UUID], *, at: float) -> None:
        del tenant, at
        self.ids += map(str, ids)


def _n(block: Json, memory_id: str) -> int:
    return next(item["n"] for item in block["items"] if item["id"] == memory_id)


class TestTemplate:
    async def test_the_requests_comes_before_the_policys(self, service: Service) -> None:
        own = {"header": "Own", "group": "", "memory": "* $content"}
        async with service.database.tenant(service.tenant) as connection:
            await change_policy(service.tenant, connection, changes={"context_template": own})
        async with service.running() as client:
            memory_id = await _write(client, "green $tea ${id}")
            assert (await _packed(client, "tea"))["text"] == "Own\n* green $tea ${id}"
            block = await _packed(client, "tea", template={"header": "", "group": "", "memory": "$id: $content"})
            assert block["text"] == f"{memory_id}: green $tea ${{id}}"

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"template": {"memory": "$secret $content"}}, "/template/memory"),
            ({"template": {"memory": "no text"}}, "/template/memory"),
            ({"template": {"memory": "x" * 2_001}}, "/template/memory"),
            ({"template": {"foot": ""}}, "/template/foot"),
            ({"max_tokens": 0}, "/max_tokens"),
            ({"valid_at": "soon"}, "/valid_at"),
            ({"filters": {"nothing": 1}}, "/filters/nothing"),
            ({"counter": "words"}, "/counter"),
            ({"query": "\0"}, "/query"),
        ],
    )
    async def test_what_cannot_be_done_names_its_field(
        self, client: httpx2.AsyncClient, body: Json, pointer: str
    ) -> None:
        response = await client.post("/v1/context", json={"query": "tea", **body})
        assert response.status_code == 422, response.text
        assert [fault["pointer"] for fault in response.json()["errors"]] == [pointer]

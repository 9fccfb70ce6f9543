"""Lists of memories: any filter, any order, each memory once, from whatever page one goes on."""

import asyncio
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplane_core.contracts.lists import Sort
from memplane_core.domain.filters import FIELDS
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

INJECTIONS = ['") or true or ("', "x' or '1' == '1", '"', "'", "\\", "a\nb", "👩‍👧", "$1", "'); DROP TABLE memory --"]
MANY = """
WITH made AS (
    INSERT INTO memory (tenant_id, id, content, scene, memory_type, importance, pinned, metadata, occurred_at,
                        occurred_given, created_at)
    SELECT $1, uuidv7(), n::text, '{}', 'experience', 0.5, false, '{}', now(), true,
           clock_timestamp() - n % 100 * interval '1 second'
    FROM generate_series(1, $2::int) n
    RETURNING id, created_at
)
INSERT INTO memory_usage (tenant_id, memory_id, priority, last_accessed_at) SELECT $1, id, 3, created_at FROM made
"""


async def _write(client: httpx2.AsyncClient, **body: Any) -> Json:
    response = await client.post("/v1/memories", json={"on_duplicate": "create", **body})
    assert response.status_code == 201, response.text
    return response.json()


async def _listed(client: httpx2.AsyncClient, filters: Json, **more: Any) -> list[str]:
    """Contents of all pages."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        body = {"filters": filters, **more, **({"cursor": cursor} if cursor else {})}
        response = await client.post("/v1/memories/list", json=body)
        assert response.status_code == 200, response.text
        found += [memory["content"] for memory in response.json()["results"]]
        cursor = response.json()["next_cursor"]
        if cursor is None:
            return found


class TestFilters:
    async def test_a_list_by_the_grammar_has_what_matches_and_no_more(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="1", user_id="u", scene=["a", "b"], metadata={"lang": "zh"}, importance=0.9)
        await _write(client, content="2", user_id="u", scene=["a", "b"], metadata={"lang": "en"}, pinned=True)
        await _write(client, content="3", user_id="u", scene=["a"], metadata={"lang": "zh"}, importance=0.9)
        await _write(client, content="4", user_id="u", scene=["b", "a"], metadata={"lang": "zh"}, source="import")
        await _write(client, content="5", scene=["a", "b"], metadata={"lang": "zh"}, importance=0.9)
        await _write(client, content="6", user_id="u", scene=["a", "b"], importance=0.9)
        where = {
            "user_id": "u",
            "scene": ["a", "b"],
            "metadata.lang": {"in": ["zh", "en"]},
            "OR": [{"importance": {"gt": 0.5}}, {"pinned": True}, {"source": "import"}],
            "NOT": {"source": "import"},
        }
        assert await _listed(client, where) == ["2", "1"]

    async def test_a_list_of_many_tags_asks_what_one_of_few_does(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="1", scene=["s0"])
        await _write(client, content="2", scene=["s0", "s99", "t"])
        many = [f"s{n}" for n in range(100)]
        for tags in (many[:2], many[:32], many[:33], many):
            assert await _listed(client, {"scene": {"contains_any": tags}}) == ["2", "1"]
            assert await _listed(client, {"scene": {"nin": tags}}) == []
            assert await _listed(client, {"AND": [{"scene": {"in": tags}}] * 5, "scene": "t"}) == ["2"]
        assert await _listed(client, {"scene": many}) == []
        assert await _listed(client, {"scene": ["t", "s99", "s0"]}) == ["2"]

    async def test_a_patched_priority_counts_at_once(self, client: httpx2.AsyncClient) -> None:
        memory = await _write(client, content="useful", priority=2)
        assert await _listed(client, {"priority": {"gt": 3}}) == []
        await client.patch(f"/v1/memories/{memory['id']}", json={"priority": 5})
        assert await _listed(client, {"priority": {"gt": 3}}) == ["useful"]

    async def test_the_query_string_takes_the_simple_fields(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="1", user_id="u", actor="Ana", source="chat", scene=["a", "b"], external_id="e1")
        await _write(client, content="2", user_id="u", actor="Bob", source="mail", scene=["b"], priority=5)

        async def contents(**query: str) -> list[str]:
            page = (await client.get("/v1/memories", params=query)).json()
            return [memory["content"] for memory in page["results"]]

        assert await contents(actor="Ana") == await contents(source="chat") == await contents(external_id="e1") == ["1"]
        assert await contents(scene="b") == ["2", "1"]
        assert await contents(scene="b", actor="Bob", user_id="u") == ["2"]
        assert await contents(sort="priority") == ["1", "2"]

    @pytest.mark.parametrize("text", INJECTIONS)
    async def test_odd_text_finds_its_own_memory_alone(self, client: httpx2.AsyncClient, text: str) -> None:
        key = "metadata." + text.replace("\\", "\\\\").replace(".", "\\.")
        await _write(client, content="odd", user_id=text, scene=[text], metadata={text: text})
        await _write(client, content="plain", user_id="u", scene=["s"], metadata={"k": "v"})
        for where in ({"user_id": text}, {"scene": text}, {key: text}, {"NOT": {key: None}}, {"user_id": {"ne": "u"}}):
            assert await _listed(client, where) == ["odd"], where
        assert (await client.post("/v1/memories/list", json={"filters": {text: 1}})).status_code == 422

    async def test_a_fault_is_named_by_its_place_in_the_body(self, client: httpx2.AsyncClient) -> None:
        where = {"OR": [{"user_id": "u"}, {"priority": {"gt": "3"}}]}
        for path, body in (("list", {}), ("search", {"query": "q"})):
            response = await client.post(f"/v1/memories/{path}", json={"filters": where, **body})
            assert response.status_code == 422
            assert response.json()["errors"][0]["pointer"] == "/filters/OR/1/priority/gt"
        response = await client.get("/v1/memories", params={"actor": "a\0"})
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "actor")

    async def test_expired_memories_are_in_no_list(self, client: httpx2.AsyncClient) -> None:
        await _write(client, content="gone", user_id="u", expires_at="2020-01-01T00:00:00Z")
        await _write(client, content="there", user_id="u")
        for where in ({}, {"user_id": "u"}, {"NOT": {"user_id": "v"}}, {"expires_at": None}):
            assert await _listed(client, where) == ["there"]
        assert await _listed(client, {"expires_at": {"lt": "2021-01-01T00:00:00Z"}}) == []

    async def test_no_filter_reaches_into_another_tenant(
        self, client: httpx2.AsyncClient, service: Any, database: Database
    ) -> None:
        await _write(client, content="mine", scene=["s"], metadata={"k": 1})
        others = service.headers(await make_tenant(database))
        for where in ({}, {"scene": "s"}, {"NOT": {"scene": "t"}}, {"OR": [{"scene": "s"}, {"metadata.k": 1}]}):
            response = await client.post("/v1/memories/list", json={"filters": where}, headers=others)
            assert response.json() == {"results": [], "next_cursor": None}


class TestOrder:
    @pytest.mark.parametrize("key", ["created_at", "updated_at", "occurred_at", "last_accessed_at"])
    async def test_is_kept_over_pages_in_both_directions(self, client: httpx2.AsyncClient, key: str) -> None:
        for n in (3, 1, 2, 2, 5):
            await _write(client, content=str(n), occurred_at=n, importance=n / 5, priority=n)
        up = await _listed(client, {}, sort=key, limit=2)
        assert up == (["1", "2", "2", "3", "5"] if key == "occurred_at" else ["3", "1", "2", "2", "5"])
        assert await _listed(client, {}, sort=f"-{key}", limit=2) == up[::-1]

    @pytest.mark.parametrize("key", ["importance", "priority", "access_count"])
    async def test_of_what_is_equal_is_that_of_ids(self, client: httpx2.AsyncClient, key: str) -> None:
        for n in (3, 1, 2, 2, 3):
            await _write(client, content=f"{n}", importance=n / 5, priority=n)
        up = await _listed(client, {}, sort=key, limit=1)
        assert up == (["3", "1", "2", "2", "3"] if key == "access_count" else ["1", "2", "2", "3", "3"])
        assert await _listed(client, {}, sort=f"-{key}", limit=3) == up[::-1]

    async def test_each_of_20000_memories_comes_once_while_others_write(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        async with database.tenant(tenant) as connection:
            await connection.execute(MANY, tenant, 20_000)
        done = asyncio.Event()

        async def disturb() -> int:
            written = 0
            while not done.is_set():
                batch = {"memories": [{"content": f"new {written} {n}"} for n in range(5)]}
                made = (await client.post("/v1/memories/batch", json=batch)).json()["results"]
                await client.patch(f"/v1/memories/{made[0]['id']}", json={"priority": 5})
                await client.delete(f"/v1/memories/{made[1]['id']}")
                written += 1
            return written

        disturbing = asyncio.create_task(disturb())
        try:
            listed = await _listed(client, {}, limit=1000)
        finally:
            done.set()
            written = await disturbing

        assert written > 0
        assert sorted(text for text in listed if not text.startswith("new")) == sorted(map(str, range(1, 20_001)))


class TestCursors:
    @pytest.mark.parametrize("sort", ["-created_at", "priority"])
    async def test_one_of_another_list_or_a_mangled_one_is_refused(
        self, client: httpx2.AsyncClient, sort: Sort
    ) -> None:
        for n in range(3):
            await _write(client, content=str(n), user_id="u")
        body: Json = {"filters": {"user_id": "u"}, "sort": sort, "limit": 1}
        cursor: str = (await client.post("/v1/memories/list", json=body)).json()["next_cursor"]

        async def refused(**change: Any) -> bool:
            response = await client.post("/v1/memories/list", json={**body, "cursor": cursor, **change})
            if response.status_code == 422:
                assert response.json()["errors"][0]["pointer"] == "/cursor"
            return response.status_code == 422

        assert not await refused()
        assert not await refused(limit=2)
        assert not await refused(filters={"user_id": {"eq": "u"}})
        assert await refused(filters={})
        assert await refused(filters={"user_id": "v"})
        assert await refused(sort="-updated_at")
        for place in range(0, len(cursor), 5):
            other = "A" if cursor[place] != "A" else "B"
            assert await refused(cursor=cursor[:place] + other + cursor[place + 1 :]), place
        for odd in (cursor[:-4], cursor + "AAAA", "AAAA", "=", "é", " ", cursor + "\n"):
            assert await refused(cursor=odd), odd

    async def test_of_the_query_string_goes_on_in_the_body_and_back(self, client: httpx2.AsyncClient) -> None:
        for n in range(3):
            await _write(client, content=str(n), user_id="u")
        first = (await client.get("/v1/memories", params={"user_id": "u", "limit": 1})).json()
        body = {"filters": {"user_id": "u"}, "cursor": first["next_cursor"], "limit": 1}
        second = (await client.post("/v1/memories/list", json=body)).json()
        query = {"user_id": "u", "cursor": second["next_cursor"]}
        third = (await client.get("/v1/memories", params=query)).json()
        assert [page["results"][0]["content"] for page in (first, second, third)] == ["2", "1", "0"]
        assert third["next_cursor"] is None


ODD = st.sampled_from(
    ["", "a", "a\0b", "\ud7ff", "\ufffe", "👩‍👧", "退款", "\"'\\", "x" * 257, "2026-05-08T00:00:00Z", *INJECTIONS]
)
NUMBERS = st.sampled_from([0, 1, -1, 0.5, 1e16, 1.5e300, 5e-324, 2**31, 2**63, 10**30, -62135596801, 253402300800])
ANY = st.recursive(
    ODD | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD | st.sampled_from(["eq", "gt"]), inner, max_size=2),
    max_leaves=6,
)
OPERATORS = st.sampled_from(
    ["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "contains_any", "contains_all", "exists", "like", ""]
)
KEYS = (
    st.sampled_from([*FIELDS, "metadata.a", "metadata.a.b", r"metadata.\.", "metadata", "tenant_id", "content"]) | ODD
)
MEMBERS = st.dictionaries(KEYS, st.dictionaries(OPERATORS, ANY, max_size=2) | ANY, max_size=2)
WHATEVER = st.recursive(
    MEMBERS | ANY,
    lambda inner: st.dictionaries(
        st.sampled_from(["AND", "OR", "NOT"]), st.lists(inner, max_size=3) | inner, max_size=2
    ),
    max_leaves=5,
)


@settings(
    max_examples=200, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(filters=WHATEVER)
async def test_whatever_a_filter_holds_it_is_taken_or_refused(client: httpx2.AsyncClient, *, filters: Any) -> None:
    listed = await client.post("/v1/memories/list", json={"filters": filters})
    searched = await client.post("/v1/memories/search", json={"filters": filters, "query": "q"})
    assert listed.status_code in (200, 422), (filters, listed.text)
    assert searched.status_code in (listed.status_code, 503), (filters, searched.text)

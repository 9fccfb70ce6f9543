"""Short-term memory over HTTP: what sessions hold, what becomes a memory, once and in order."""

import random
from typing import Any

import httpx2
import pytest
from tests.integration.retrieval.conftest import Service

from memplane_core.testing.embedder import POISON

pytestmark = pytest.mark.anyio

SESSION = {"session_id": "s", "user_id": "ana", "agent_id": "guide"}


async def observe(client: httpx2.AsyncClient, content: str, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/observations", json={"content": content, **SESSION, **fields})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def held(client: httpx2.AsyncClient, **session: str) -> list[dict[str, Any]]:
    answer = await client.get("/v1/observations", params=SESSION | session)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


async def memories(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    answer = await client.get("/v1/memories", params={"sort": "created_at", "limit": 1000})
    return answer.json()["results"]


async def set_rules(service: Service, **rules: Any) -> None:
    async with service.database.tenant(service.tenant) as connection:
        await connection.execute(
            "UPDATE tenant SET policy = policy || $2 WHERE id = $1", service.tenant, {"short_term": rules}
        )


class TestFirstInFirstOut:
    async def test_the_oldest_becomes_a_memory_of_the_same_id_when_there_is_no_room(
        self, client: httpx2.AsyncClient
    ) -> None:
        made = [await observe(client, f"thing {n}") for n in range(7)]
        assert [taken["promoted"] for taken in made] == [[]] * 5 + [[made[0]["id"]], [made[1]["id"]]]
        assert [its["content"] for its in await held(client)] == [f"thing {n}" for n in range(2, 7)]
        found = {memory["id"]: memory for memory in await memories(client)}
        assert found.keys() == {made[0]["id"], made[1]["id"]}
        first = found[made[0]["id"]]
        assert (first["content"], first["user_id"], first["agent_id"], first["session_id"]) == (
            "thing 0",
            "ana",
            "guide",
            "s",
        )

    async def test_a_thousand_in_batches_of_any_size_are_a_thousand_once_each_and_in_order(
        self, client: httpx2.AsyncClient
    ) -> None:
        sizes = random.Random(8)
        sent: list[str] = []
        promoted: list[str] = []
        while len(sent) < 1000:
            texts = [f"item {n}" for n in range(len(sent), min(len(sent) + sizes.choice([1, 4, 5, 6, 100]), 1000))]
            body = {**SESSION, "observations": [{"content": text} for text in texts]}
            answer = await client.post("/v1/observations/batch", json=body)
            assert answer.status_code == 200, answer.text
            results = answer.json()["results"]
            sent += [taken["id"] for taken in results]
            promoted += [name for taken in results for name in taken["promoted"]]
        assert promoted == sent[:995]
        assert [its["id"] for its in await held(client)] == sent[995:]
        found = (await client.get("/v1/memories", params={"sort": "occurred_at", "limit": 1000})).json()["results"]
        assert [memory["id"] for memory in found] == promoted
        assert [memory["content"] for memory in found] == [f"item {n}" for n in range(995)]

    async def test_sessions_are_told_apart_by_all_three_names(self, client: httpx2.AsyncClient) -> None:
        for session in ({}, {"user_id": "ana"}, {"agent_id": "ana"}, {"user_id": "ana", "agent_id": "ana"}):
            body = {"content": f"for {session}", "session_id": "s", **session}
            assert (await client.post("/v1/observations", json=body)).status_code == 201
            found = await client.get("/v1/observations", params={"session_id": "s", **session})
            assert [its["content"] for its in found.json()["results"]] == [f"for {session}"]

    async def test_the_same_said_twice_is_two_observations_and_two_memories(self, client: httpx2.AsyncClient) -> None:
        body = {**SESSION, "observations": [{"content": "yes"}] * 7}
        await client.post("/v1/observations/batch", json=body)
        assert [memory["content"] for memory in await memories(client)] == ["yes", "yes"]
        assert len(await held(client)) == 5

    async def test_pages_come_in_order_and_end(self, client: httpx2.AsyncClient) -> None:
        made = [(await observe(client, f"thing {n}"))["id"] for n in range(5)]
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await client.get("/v1/observations", params=SESSION | {"limit": "2"} | cursor)).json()
            seen += [its["id"] for its in page["results"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert seen == made
        for wrong in ("-1", "x", "9" * 19, "1" * 30):
            refused = await client.get("/v1/observations", params=SESSION | {"cursor": wrong})
            assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "cursor")


class TestWhatIsKept:
    async def test_fields_are_kept_and_handed_on_to_the_memory(self, service: Service) -> None:
        await set_rules(service, buffer_size=1)
        given = {
            "actor": "Ana", "scene": ["hall"], "source": "camera", "memory_type": "sight", "importance": 0.0,
            "metadata": {"n": 1e16, "deep": [1, 2.5, None]}, "occurred_at": "2024-02-29T10:00:00.000001+02:00",
        }  # fmt: skip
        async with service.running() as client:
            taken = await observe(client, "  a fox\n", **given)
            [seen] = await held(client)
            assert seen == {
                **given, **SESSION, "id": taken["id"], "content": "  a fox\n", "strengthened": 0,
                "occurred_at": "2024-02-29T08:00:00.000001Z", "observed_at": seen["observed_at"],
            }  # fmt: skip
            await observe(client, "an owl")
            memory = (await client.get(f"/v1/memories/{taken['id']}")).json()
            assert {name: memory[name] for name in seen if name not in ("observed_at", "strengthened")} == {
                name: value for name, value in seen.items() if name not in ("observed_at", "strengthened")
            }
            found = await client.post("/v1/memories/search", json={"query": "fox", "mode": "dense"})
            assert found.json()["results"][0]["id"] == taken["id"]

    async def test_what_matters_less_than_the_threshold_is_answered_as_not_kept(self, service: Service) -> None:
        await set_rules(service, threshold=0.4, buffer_size=1)
        async with service.running() as client:
            first = await observe(client, "worth it", importance=0.4)
            answer = await client.post("/v1/observations", json={"content": "hm", **SESSION, "importance": 0})
            assert (answer.status_code, answer.json()["kept"], answer.json()["importance"]) == (200, False, 0)
            assert [its["id"] for its in await held(client)] == [first["id"]]
            assert (await client.get(f"/v1/memories/{answer.json()['id']}")).status_code == 404

    async def test_importance_is_guessed_where_the_policy_says_so(self, service: Service) -> None:
        async with service.database.tenant(service.tenant) as connection:
            policy = {"importance_scorer": "heuristic", "short_term": {"threshold": 0.3}}
            await connection.execute("UPDATE tenant SET policy = $2 WHERE id = $1", service.tenant, policy)
        async with service.running() as client:
            assert not (await observe(client, "ok thanks"))["kept"]
            told = await observe(client, "My sister Berit got married in Lisbon on 8 May 2026.")
            assert (told["kept"], told["importance"]) == (True, (await held(client))[0]["importance"])

    async def test_what_is_dropped_by_the_policy_is_gone_and_named(self, service: Service) -> None:
        await set_rules(service, buffer_size=2, overflow="drop")
        async with service.running() as client:
            made = [await observe(client, f"thing {n}") for n in range(4)]
            assert [taken["dropped"] for taken in made] == [[], [], [made[0]["id"]], [made[1]["id"]]]
            assert await memories(client) == []
            assert service.embedder.calls == 0
            ended = await client.post("/v1/sessions/end", json=SESSION)
            assert ended.json()["promoted"] == [made[2]["id"], made[3]["id"]]

    @pytest.mark.parametrize(
        ("body", "pointer"),
        [
            ({"content": ""}, "/content"),
            ({"content": "x" * 32_769}, "/content"),
            ({"content": "x", "importance": 1.5}, "/importance"),
            ({"content": "x", "session_id": "\0"}, "/session_id"),
            ({"content": "x", "external_id": "y"}, "/external_id"),
            ({"content": "x", "metadata": {"derived_from": []}}, "/metadata/derived_from"),
            ({"content": "x", "occurred_at": 1e18}, "/occurred_at"),
        ],
    )
    async def test_what_cannot_be_kept_is_a_422_that_names_it(
        self, client: httpx2.AsyncClient, body: dict[str, Any], pointer: str
    ) -> None:
        answer = await client.post("/v1/observations", json=SESSION | body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text
        assert await held(client) == []

    async def test_a_session_has_to_name_a_user_where_the_policy_says_so(self, service: Service) -> None:
        async with service.database.tenant(service.tenant) as connection:
            await connection.execute(
                "UPDATE tenant SET policy = '{\"require_user\": true}' WHERE id = $1", service.tenant
            )
        nobody: dict[str, Any] = {"session_id": "s", "user_id": None}
        async with service.running() as client:
            for path, body, pointer in (
                ("/v1/observations", {**nobody, "content": "x"}, "/user_id"),
                ("/v1/observations/batch", {"session_id": "s", "observations": [{"content": "x"}]}, "/user_id"),
                ("/v1/sessions/end", {"session_id": "s"}, "/user_id"),
                (
                    "/v1/memories/search",
                    {"query": "x", "filters": {"user_id": "ana"}, "include_short_term": nobody},
                    "/include_short_term/user_id",
                ),
            ):
                answer = await client.post(path, json=body)
                assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text
            answer = await client.get("/v1/observations", params={"session_id": "s"})
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "user_id")
            assert (await observe(client, "x"))["kept"]


class TestEnhanced:
    async def test_what_is_observed_again_and_again_becomes_a_memory(self, service: Service) -> None:
        await set_rules(service, kind="enhanced", enhance_threshold=2, buffer_size=5)
        async with service.running() as client:
            first = await observe(client, "the red kettle whistles in the kitchen")
            other = await observe(client, "somebody sells umbrellas outside")
            again = await observe(client, "the red kettle whistles in the kitchen!")
            assert (again["strengthened"], again["promoted"]) == ([first["id"]], [])
            assert [its["strengthened"] for its in await held(client)] == [1, 0, 0]
            third = await observe(client, "the red kettle whistles in the kitchen now")
            assert third["strengthened"] == [first["id"], again["id"]]
            assert third["promoted"] == [first["id"]]
            assert [its["id"] for its in await held(client)] == [other["id"], again["id"], third["id"]]
            assert [memory["id"] for memory in await memories(client)] == [first["id"]]

    async def test_a_batch_comes_to_what_its_observations_come_to_one_by_one(self, service: Service) -> None:
        await set_rules(service, kind="enhanced", enhance_threshold=2, buffer_size=3)
        texts = [f"the {['red', 'blue'][n % 2]} kettle {['sings', 'whistles'][n % 3 % 2]} loudly" for n in range(12)]
        happened: list[list[tuple[list[int], ...]]] = []
        async with service.running() as client:
            for session, size in (("one", 1), ("all", 12)):
                results: list[dict[str, Any]] = []
                for start in range(0, 12, size):
                    body = {"session_id": session, "observations": [{"content": its} for its in texts[start:][:size]]}
                    results += (await client.post("/v1/observations/batch", json=body)).json()["results"]
                places = {taken["id"]: n for n, taken in enumerate(results)}
                happened.append(
                    [
                        tuple([places[name] for name in taken[what]] for what in ("strengthened", "promoted"))
                        for taken in results
                    ]
                )
        assert happened[0] == happened[1]
        assert any(strengthened for strengthened, _ in happened[0])

    async def test_the_least_important_makes_room(self, service: Service) -> None:
        await set_rules(service, kind="enhanced", buffer_size=2)
        async with service.running() as client:
            made = [await observe(client, f"thing {n}", importance=weight) for n, weight in enumerate((0.9, 0.2, 0.5))]
            assert made[2]["promoted"] == [made[1]["id"]]
            assert [its["id"] for its in await held(client)] == [made[0]["id"], made[2]["id"]]


class TestVectors:
    async def test_a_long_observation_becomes_just_what_a_memory_of_that_text_is(self, service: Service) -> None:
        await set_rules(service, buffer_size=1)
        given = {"content": "a long story of a kettle " * 300, "actor": "Ana", "occurred_at": "2026-05-08T13:56:00Z"}
        async with service.running() as client:
            seen = await observe(client, **given)
            embedded = service.embedder.calls
            await observe(client, "next")
            assert service.embedder.calls == embedded + 1  # what was embedded once is not embedded again
            written = (await client.post("/v1/memories", json=given)).json()
        async with service.database.tenant(service.tenant) as connection:
            chunks = [
                await connection.fetch(
                    "SELECT generation, rev, n, span_start, span_end, embedding::text FROM chunk"
                    " WHERE tenant_id = $1 AND memory_id = $2::text::uuid ORDER BY n",
                    service.tenant,
                    memory_id,
                )
                for memory_id in (seen["id"], written["id"])
            ]
        assert len(chunks[0]) > 3
        assert chunks[0] == chunks[1]

    async def test_vectors_of_an_earlier_generation_are_neither_compared_nor_stored(self, service: Service) -> None:
        await set_rules(service, kind="enhanced", buffer_size=1)
        async with service.running() as client:
            seen = await observe(client, "a kettle whistles")
            async with service.database.tenant(service.tenant) as connection:
                await connection.execute("UPDATE observation SET generation = 7 WHERE tenant_id = $1", service.tenant)
            again = await observe(client, "a kettle whistles")
            assert (again["strengthened"], again["promoted"]) == ([], [seen["id"]])
        async with service.database.tenant(service.tenant) as connection:
            chunks = await connection.fetch("SELECT embedding FROM chunk WHERE tenant_id = $1", service.tenant)
        assert [row["embedding"] for row in chunks] == [None]


class TestWithoutVectors:
    @pytest.mark.parametrize("text", ["plain", POISON])
    async def test_what_was_not_embedded_becomes_a_pending_memory_that_its_words_find(
        self, service: Service, text: str
    ) -> None:
        await set_rules(service, kind="enhanced", buffer_size=1)
        service.embedder.down = text == "plain"
        async with service.running() as client:
            first = await observe(client, f"{text} lantern")
            await observe(client, "another")
            service.embedder.down = False
            found = await client.post("/v1/memories/search", json={"query": "lantern", "mode": "lexical"})
            [memory] = found.json()["results"]
            assert (memory["id"], memory["index_state"]) == (first["id"], "pending")
        assert service.kicker.kicked == [service.tenant]


class TestTheEnd:
    async def test_ending_a_session_makes_memories_of_what_is_left_in_order_and_once(
        self, client: httpx2.AsyncClient
    ) -> None:
        made = [(await observe(client, f"thing {n}"))["id"] for n in range(7)]
        other = await observe(client, "elsewhere", session_id="other")
        ended = await client.post("/v1/sessions/end", json=SESSION)
        assert (ended.status_code, ended.json()["promoted"]) == (200, made[2:])
        assert (await client.post("/v1/sessions/end", json=SESSION)).json()["promoted"] == []
        assert await held(client) == []
        found = (await client.get("/v1/memories", params={"sort": "occurred_at"})).json()["results"]
        assert [memory["id"] for memory in found] == made
        assert [its["id"] for its in await held(client, session_id="other")] == [other["id"]]

    async def test_reading_makes_no_memories(self, client: httpx2.AsyncClient) -> None:
        await observe(client, "thing")
        for _ in range(3):
            await held(client)
            await client.post("/v1/memories/search", json={"query": "thing", "include_short_term": SESSION})
        assert await memories(client) == []


class TestRepeats:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/observations", {"content": "once", **SESSION}),
            ("/v1/observations/batch", {**SESSION, "observations": [{"content": f"n {n}"} for n in range(8)]}),
            ("/v1/sessions/end", SESSION),
        ],
    )
    async def test_a_repeated_request_does_nothing_more_and_is_answered_the_same(
        self, client: httpx2.AsyncClient, path: str, body: dict[str, Any]
    ) -> None:
        await observe(client, "before")
        headers = {"Idempotency-Key": "k"}
        first = await client.post(path, json=body, headers=headers)
        before = (await held(client), await memories(client))
        again = await client.post(path, json=body, headers=headers)
        assert (again.json(), again.status_code) == (first.json(), first.status_code)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert (await held(client), await memories(client)) == before
        refused = await client.post(path, json=body | {"agent_id": "x"}, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")


class TestQuotas:
    async def test_a_full_quota_refuses_what_would_become_a_memory_and_loses_nothing(
        self, client: httpx2.AsyncClient, service: Service
    ) -> None:
        async with service.database.tenant(service.tenant) as connection:
            limits = {"stored_memories": 6}
            await connection.execute("UPDATE tenant SET limits = $2 WHERE id = $1", service.tenant, limits)
        made = [(await observe(client, f"thing {n}"))["id"] for n in range(6)]
        refused = await client.post("/v1/observations", json={"content": "one more", **SESSION})
        assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
        assert [its["id"] for its in await held(client)] == made[1:]
        assert [memory["id"] for memory in await memories(client)] == made[:1]


class TestReadingBoth:
    async def test_one_search_returns_what_the_session_holds_in_order_and_what_is_recalled_and_nothing_twice(
        self, client: httpx2.AsyncClient
    ) -> None:
        made = [await observe(client, f"the lighthouse keeper counts {n} ships") for n in range(8)]
        asked = {"query": "lighthouse keeper ships", "include_short_term": SESSION}
        found = (await client.post("/v1/memories/search", json=asked)).json()
        assert [its["id"] for its in found["short_term"]] == [taken["id"] for taken in made[3:]]
        assert {memory["id"] for memory in found["results"]} == {taken["id"] for taken in made[:3]}
        other = {"query": "lighthouse", "include_short_term": SESSION | {"session_id": "another"}}
        assert (await client.post("/v1/memories/search", json=other)).json()["short_term"] == []
        assert "short_term" not in (await client.post("/v1/memories/search", json={"query": "lighthouse"})).json()

"""What each arm of a search finds, alone and with the other away."""

from typing import Any
from uuid import UUID

import httpx2
import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database

pytestmark = pytest.mark.anyio


async def _write(client: httpx2.AsyncClient, *contents: str, **fields: Any) -> list[str]:
    memories = [{"content": content, **fields} for content in contents]
    response = await client.post("/v1/memories/batch", json={"memories": memories})
    assert response.status_code == 200, response.text
    return [item["id"] for item in response.json()["results"]]


async def _search(client: httpx2.AsyncClient, query: str, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/memories/search", json={"query": query, "touch": False} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def _contents(answer: dict[str, Any]) -> list[str]:
    return [result["content"] for result in answer["results"]]


async def _crowd(client: httpx2.AsyncClient, count: int, **fields: Any) -> None:
    """Memories that share no word with what is looked for."""
    await _write(client, *(f"crowd{n} filler{n}" for n in range(count)), **fields)


class TestWords:
    @pytest.mark.parametrize(
        ("content", "query"),
        [
            ("订单已经退款成功", "退款"),
            ("ORD-7781 shipped on Monday", "what about ORD-7781"),
            ("She was refunding customers", "refunds"),
            ("Café opening hours", "cafe"),
        ],
    )
    async def test_are_found_however_far_the_vectors_lie(
        self, client: httpx2.AsyncClient, service: Any, content: str, query: str
    ) -> None:
        await _write(client, content)
        await _crowd(client, 300)
        await service.tell_index(shown=True)

        async with service.running() as second:
            answer = await _search(second, query, mode="lexical", explain=True)

        assert _contents(answer) == [content]
        assert answer["degraded"] == []
        assert answer["results"][0]["explain"]["lexical"] == 1.0
        assert answer["results"][0]["explain"]["cosine"] is None

    async def test_nominate_what_no_vector_is_near_to(self, client: httpx2.AsyncClient, service: Any) -> None:
        await _write(client, "zebra " + " ".join(f"noise{n}" for n in range(60)))
        await _crowd(client, 300)
        await service.tell_index(shown=True)

        async with service.running() as second:
            answer = await _search(second, "zebra filler1", candidates=2, top_k=2)

        assert any(content.startswith("zebra") for content in _contents(answer))

    async def test_that_all_memories_have_are_found_together_all_the_same(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        for start in range(3):
            await _write(client, *(f"note of day {start} {n}" for n in range(700)))
        await _write(client, "note of a day in blue")
        await service.tell_index(shown=True)

        async with service.running() as second:
            rare = await _search(second, "note in blue", mode="lexical", top_k=1)
            common = await _search(second, "note", mode="lexical")
            nobody = await _search(second, "note", mode="lexical", filters={"user_id": "nobody"})

        assert _contents(rare) == ["note of a day in blue"]
        assert (len(common["results"]), common["degraded"]) == (10, [])
        assert (nobody["results"], nobody["degraded"]) == ([], [])

    async def test_of_one_user_are_found_among_anothers(self, client: httpx2.AsyncClient, service: Any) -> None:
        for start in range(2):
            await _write(client, *(f"note {start} {n}" for n in range(700)), user_id="loud")
        [quiet] = await _write(client, "a note", user_id="quiet")
        await service.tell_index(shown=True)

        async with service.running() as second:
            found = await _search(second, "note", mode="lexical", filters={"user_id": "quiet"})
            await client.patch(f"/v1/memories/{quiet}", json={"user_id": "calm"})
            left = await _search(second, "note", mode="lexical", filters={"user_id": "quiet"})
            moved = await _search(second, "note", mode="lexical", filters={"user_id": "calm"})

        assert [_contents(answer) for answer in (found, left, moved)] == [["a note"], [], ["a note"]]

    async def test_of_a_text_that_waits_for_its_vector_are_found_at_once(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _write(client, "something else")
        await service.tell_index(shown=True)
        service.embedder.down = True
        await _write(client, "the refund of ORD-7781")
        service.embedder.down = False

        async with service.running() as second:
            answer = await _search(second, "ORD-7781", top_k=1, explain=True)

        assert _contents(answer)[0] == "the refund of ORD-7781"
        assert answer["results"][0]["explain"]["origin"] == "words"
        assert answer["results"][0]["explain"]["cosine"] is None


class TestModes:
    async def test_dense_counts_no_words_and_lexical_no_meaning(self, client: httpx2.AsyncClient, service: Any) -> None:
        await _write(client, "alpha beta", "gamma delta")
        await service.tell_index(shown=True)

        async with service.running() as second:
            dense = await _search(second, "alpha", mode="dense", explain=True)
            lexical = await _search(second, "alpha", mode="lexical", explain=True)

        assert {result["explain"]["lexical"] for result in dense["results"]} == {0.0}
        assert _contents(lexical) == ["alpha beta"]
        assert {result["explain"]["dense"] for result in lexical["results"]} == {0.0}

    async def test_a_query_without_words_finds_nothing_by_words(self, client: httpx2.AsyncClient) -> None:
        await _write(client, "alpha")
        assert (await _search(client, "?!", mode="lexical"))["results"] == []

    @pytest.mark.parametrize("indexed", [True, False])
    async def test_with_the_embedder_away_words_answer_and_that_is_said(
        self, client: httpx2.AsyncClient, service: Any, *, indexed: bool
    ) -> None:
        await _write(client, "the cat sleeps on the red sofa", "quarterly revenue grew")
        if indexed:
            await service.tell_index(shown=True)
        service.embedder.down = True

        async with service.running() as second:
            answer = await _search(second, "cat sofa")

        assert _contents(answer) == ["the cat sleeps on the red sofa"]
        assert answer["degraded"] == ["dense"]

    async def test_with_embedder_and_index_away_postgres_finds_the_words(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _write(client, "the cat sleeps on the red sofa", "quarterly revenue grew")
        await service.tell_index(shown=True)
        service.embedder.down = True
        service.index.down = True

        async with service.running() as second:
            answer = await _search(second, "cat sofa")

        assert _contents(answer) == ["the cat sleeps on the red sofa"]
        assert answer["degraded"] == ["dense"]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
class TestChangesAreInTheNextAnswerOfBothArms:
    async def test_edits_and_deletes(self, client: httpx2.AsyncClient, service: Any, mode: str) -> None:
        edited, deleted, _ = await _write(client, "zebra one", "zebra two", "zebra three")
        await service.tell_index(shown=True)
        await client.patch(f"/v1/memories/{edited}", json={"content": "giraffe"})
        await client.delete(f"/v1/memories/{deleted}")

        async with service.running() as second:
            zebras = await _search(second, "zebra", mode=mode)
            giraffes = await _search(second, "giraffe", mode=mode, top_k=1)

        assert "zebra one" not in _contents(zebras)
        assert "zebra two" not in _contents(zebras)
        assert "zebra three" in _contents(zebras)
        assert _contents(giraffes) == ["giraffe"]

    async def test_what_was_forgotten(
        self, client: httpx2.AsyncClient, service: Any, database: Database, tenant: TenantId, mode: str
    ) -> None:
        forgotten, _ = await _write(client, "zebra one", "zebra two")
        await service.tell_index(shown=True)
        async with database.tenant(tenant) as connection:
            await connection.execute(
                "UPDATE memory SET state = 'forgotten' WHERE tenant_id = $1 AND id = $2", tenant, UUID(forgotten)
            )

        async with service.running() as second:
            assert _contents(await _search(second, "zebra", mode=mode)) == ["zebra two"]


class TestSelectiveFilters:
    async def test_are_answered_by_postgres_without_asking_the_index(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _crowd(client, 400)
        await _write(client, *(f"rare {n}" for n in range(5)), scene=["seldom"])
        await service.tell_index(shown=True)
        service.index.down = True

        async with service.running() as second:
            answer = await _search(second, "rare", filters={"scene": ["seldom"]}, top_k=3, explain=True)

        assert len(answer["results"]) == 3
        assert answer["degraded"] == []
        assert {result["explain"]["origin"] for result in answer["results"]} == {"scan"}

    async def test_a_wide_one_is_left_to_the_index_and_checked_by_postgres(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _write(client, *(f"many {n}" for n in range(900)), scene=["wide"])
        await _write(client, *(f"more {n}" for n in range(300)), scene=["wide", "even"])
        await _write(client, *(f"many other {n}" for n in range(50)))
        await service.tell_index(shown=True)

        async with service.running() as second:
            answer = await _search(second, "many", filters={"scene": ["wide"]}, top_k=20, explain=True)

        assert len(answer["results"]) == 20
        assert all("wide" in result["scene"] for result in answer["results"])
        assert {result["explain"]["origin"] for result in answer["results"]} == {"index"}

    async def test_a_priority_is_seen_as_it_is_right_after_it_was_patched(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        [memory, _] = await _write(client, "a note", "another note", priority=2)
        await service.tell_index(shown=True)
        above = {"filters": {"priority": {"gt": 3}}}

        async with service.running() as second:
            assert (await _search(second, "note", **above))["results"] == []
            await client.patch(f"/v1/memories/{memory}", json={"priority": 5})
            assert [result["id"] for result in (await _search(second, "note", **above))["results"]] == [memory]


class TestRemembered:
    async def test_an_index_answer_is_used_again_until_something_new_is_indexed(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _write(client, *(f"note {n}" for n in range(30)))
        await service.tell_index(shown=True)
        asked: list[str] = []
        search = service.index.search

        async def counted(*args: Any, **kwargs: Any) -> Any:
            asked.append("search")
            return await search(*args, **kwargs)

        service.index.search = counted
        async with service.running() as second:
            first = await _search(second, "note")
            again = await _search(second, "note")
            await _write(client, "note of a volcano")
            fresh = await _search(second, "volcano note", top_k=1)
            assert len(asked) == 2
            assert _contents(again) == _contents(first)
            assert _contents(fresh) == ["note of a volcano"]
            await _search(second, "volcano note")
            assert len(asked) == 2
            await service.tell_index(shown=True)
            seen = await _search(second, "volcano note", top_k=1, explain=True)

        assert len(asked) == 3
        assert _contents(seen) == ["note of a volcano"]
        assert seen["results"][0]["explain"]["origin"] == "index"


class TestRelevance:
    async def test_nonsense_falls_under_the_floor_and_a_match_lies_above(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _write(client, "the cat sleeps on the red sofa", "quarterly revenue grew by nine percent")
        await service.tell_index(shown=True)

        async with service.running() as second:
            nonsense = await _search(second, "xylophone gearbox qwertz", min_relevance=0.3)
            match = await _search(second, "the cat on the red sofa", min_relevance=0.3)

        assert nonsense["results"] == []
        assert _contents(match) == ["the cat sleeps on the red sofa"]

    async def test_presets_and_weights_exclude_each_other(self, client: httpx2.AsyncClient) -> None:
        body = {"query": "x", "preset": "dbgpt", "weights": {"match": 1}}
        response = await client.post("/v1/memories/search", json=body)
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/preset")

    async def test_the_dbgpt_preset_adds_similarity_recency_and_a_part_of_importance(
        self, client: httpx2.AsyncClient
    ) -> None:
        await _write(client, "alpha beta", importance=0.4)
        [result] = (await _search(client, "alpha", preset="dbgpt", explain=True))["results"]
        parts = result["explain"]
        assert result["score"] == pytest.approx(parts["cosine"] + parts["recency"] + 0.15 * 0.4, abs=1e-9)


class TestReranking:
    async def test_reads_the_best_once_more_and_orders_them_by_both_opinions(
        self, client: httpx2.AsyncClient, service: Any
    ) -> None:
        await _write(client, "alpha beta gamma", "alpha beta", "delta")
        plain = await _search(client, "alpha gamma", explain=True)
        reranked = await _search(client, "alpha gamma", rerank=True, explain=True)

        assert service.reranker.calls == 3
        assert {result["explain"]["rerank"] for result in plain["results"]} == {None}
        opinions = {result["content"]: result["explain"]["rerank"] for result in reranked["results"]}
        assert opinions == {"alpha beta gamma": 1.0, "alpha beta": 0.5, "delta": 0.0}
        before = {result["id"]: result["score"] for result in plain["results"]}
        moved = {result["content"]: result["score"] - before[result["id"]] for result in reranked["results"]}
        assert moved["alpha beta"] == pytest.approx(0, abs=1e-6)
        assert moved["alpha beta gamma"] == pytest.approx(-moved["delta"], abs=1e-6)
        assert moved["alpha beta gamma"] > 0.1

    @pytest.mark.parametrize("trouble", ["down", "off"])
    async def test_away_or_switched_off_it_is_done_without_and_that_is_said(
        self, client: httpx2.AsyncClient, service: Any, trouble: str
    ) -> None:
        await _write(client, "alpha")
        setattr(service.reranker, trouble, True)
        answer = await _search(client, "alpha", rerank=True)
        assert (_contents(answer), answer["degraded"]) == (["alpha"], ["rerank"])

"""Each part may be away: what can be done without it goes on, and the rest catches up."""

from tests.e2e.spine.conftest import all_indexed, recalled, sentence, until

from memplane_core.testing.stack import Stack


def test_without_milvus_writes_are_201_and_recalled_and_indexed_once_it_is_back(stack: Stack) -> None:
    with stack.client(stack.make_tenant("without milvus")) as client:
        client.post("/v1/memories", json={"content": sentence(0)}).raise_for_status()
        until(lambda: all_indexed(client), within_s=60, what="the collection is made")
        stack.milvus.stop()

        ids: list[str] = []
        for n in range(1, 21):
            written = client.post("/v1/memories", json={"content": sentence(n)})
            assert written.status_code == 201, written.text
            ids.append(written.json()["id"])
            assert ids[-1] in recalled(client, sentence(n))
        until(
            lambda: client.post("/v1/memories/search", json={"query": sentence(0)}).json()["degraded"] == ["index"],
            within_s=10,
            what="searches say that the index is away",
        )
        assert recalled(client, sentence(0))[0] not in ids

        stack.milvus.start()
        until(lambda: all_indexed(client), within_s=90, what="all are indexed once Milvus is back")
        until(
            lambda: client.post("/v1/memories/search", json={"query": "x"}).json()["degraded"] == [],
            within_s=60,
            what="searches use the index again",
        )
        assert [n for n in range(1, 21) if ids[n - 1] not in recalled(client, sentence(n))] == []


def test_without_the_embedding_service_writes_are_202_and_indexed_once_it_is_back(stack: Stack) -> None:
    with stack.client(stack.make_tenant("without embedding")) as client:
        stack.embedding.stop()
        ids: list[str] = []
        for n in range(30, 35):
            written = client.post("/v1/memories", json={"content": sentence(n)})
            assert (written.status_code, written.json()["index_state"]) == (202, "pending")
            ids.append(written.json()["id"])
        by_meaning = client.post("/v1/memories/search", json={"query": "never asked before", "mode": "dense"})
        assert (by_meaning.status_code, by_meaning.json()["code"]) == (503, "embedding_unavailable")
        assert "retry-after" in by_meaning.headers
        by_words = client.post("/v1/memories/search", json={"query": sentence(33)}).json()
        assert (by_words["results"][0]["id"], by_words["degraded"]) == (ids[3], ["dense"])

        stack.embedding.start()
        until(lambda: all_indexed(client), within_s=90, what="all are embedded and indexed")
        assert [n for n in range(30, 35) if ids[n - 30] not in recalled(client, sentence(n))] == []


def test_without_valkey_writes_and_searches_go_on_and_indexing_resumes_after(stack: Stack) -> None:
    with stack.client(stack.make_tenant("without valkey")) as client:
        client.post("/v1/memories", json={"content": sentence(50)}).raise_for_status()
        until(lambda: all_indexed(client), within_s=60, what="the first is indexed")
        stack.valkey.stop()
        ids: list[str] = []
        for n in range(51, 61):
            written = client.post("/v1/memories", json={"content": sentence(n)})
            assert written.status_code == 201, written.text
            ids.append(written.json()["id"])
            assert ids[-1] in recalled(client, sentence(n))

        stack.valkey.start()
        if not stack.beat.running:  # it may end without its broker: whoever runs it starts it again
            stack.beat.start()
        until(lambda: all_indexed(client), within_s=90, what="indexing resumes")

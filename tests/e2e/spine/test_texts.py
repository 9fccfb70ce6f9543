"""Texts as people write them, through a real model."""

from tests.e2e.spine.conftest import all_indexed, recalled, sentence, until

from memplane_core.testing.stack import Stack

TORTURE = (
    "🎉👩‍👩‍👧‍👦 party",
    "订单 ORD-7781 已经退款成功",
    "\ufdfa" * 5_000,
    "line\nbreak\ttab \\ \"quotes\" 'and' `ticks`",
    " ",
)


def test_torture_texts_come_back_to_the_byte_and_are_recalled(stack: Stack) -> None:
    with stack.client(stack.make_tenant("torture")) as client:
        for text in TORTURE:
            written = client.post("/v1/memories", json={"content": text})
            assert written.status_code in (201, 202), written.text
            memory = client.get(f"/v1/memories/{written.json()['id']}").json()
            assert memory["content"] == text
            if written.status_code == 201:
                assert memory["id"] in recalled(client, text[:500])


def test_the_last_sentence_of_thirty_two_kib_is_found(stack: Stack) -> None:
    with stack.client(stack.make_tenant("long")) as client:
        for n in range(20):
            client.post("/v1/memories", json={"content": sentence(n)}).raise_for_status()
        ending = " The password of the vault beneath the old observatory is swordfish."
        filler = "Minutes of the meeting about next year's budget for the garden were read and approved. " * 400
        content = filler[: 32_768 - len(ending)] + ending
        assert len(content.encode()) == 32_768
        written = client.post("/v1/memories", json={"content": content})
        assert written.status_code in (201, 202), written.text
        until(lambda: all_indexed(client), within_s=60, what="its meaning is known, also where the model was late")

        answer = client.post("/v1/memories/search", json={"query": "What is the password of the observatory vault?"})

        assert answer.json()["results"][0]["id"] == written.json()["id"]


def test_two_tenants_with_the_same_texts_never_meet(stack: Stack) -> None:
    one, two = stack.make_tenant("one"), stack.make_tenant("two")
    with stack.client(one) as first, stack.client(two, door=1) as second:
        ids: list[set[str]] = []
        for client in (first, second):
            batch = {"memories": [{"content": sentence(n), "external_id": f"m{n}"} for n in range(50)]}
            results = client.post("/v1/memories/batch", json=batch | {"wait": "index"}).json()["results"]
            assert {item["index_state"] for item in results} == {"indexed"}
            ids.append({item["id"] for item in results})
        assert ids[0].isdisjoint(ids[1])
        for client, own in ((first, ids[0]), (second, ids[1])):
            for n in range(0, 50, 10):
                assert set(recalled(client, sentence(n), top_k=50)) <= own
            listed = client.get("/v1/memories", params={"limit": 1000}).json()["results"]
            assert {memory["id"] for memory in listed} == own
        stranger = next(iter(ids[1]))
        assert first.get(f"/v1/memories/{stranger}").status_code == 404
        assert first.patch(f"/v1/memories/{stranger}", json={"priority": 1}).status_code == 404
        assert first.delete(f"/v1/memories/{stranger}").status_code == 404

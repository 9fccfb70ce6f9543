"""What one process has acknowledged, another finds in its next answer: on Milvus Lite and on a real server."""

import pytest
from tests.e2e.spine.conftest import all_indexed, recalled, sentence, until

from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.stack import Stack

EXISTING = 5_000
PAIRS = 200


def _recalls_at_once(stack: Stack) -> None:
    """Writes through one retrieval process and searches through another, in a tenant of five thousand memories."""
    tenant = stack.make_tenant("five thousand")
    with stack.client(tenant, door=0) as writer, stack.client(tenant, door=1) as reader:
        for start in range(0, EXISTING, 1000):
            memories = [{"content": sentence(n), "user_id": f"u{n % 10}"} for n in range(start, start + 1000)]
            writer.post("/v1/memories/batch", json={"memories": memories}).raise_for_status()
        until(lambda: all_indexed(writer), within_s=240, what="five thousand memories are indexed")

        missed = 0
        for n in range(EXISTING, EXISTING + PAIRS):
            written = writer.post("/v1/memories", json={"content": sentence(n), "user_id": f"u{n % 10}"})
            assert written.status_code == 201, written.text
            missed += written.json()["id"] not in recalled(reader, sentence(n))

        assert missed == 0
        answer = reader.post("/v1/memories/search", json={"query": sentence(17), "explain": True}).json()
        assert answer["degraded"] == []
        assert answer["results"][0]["content"] == sentence(17)
        assert answer["results"][0]["explain"]["origin"] == "index"


@pytest.mark.timeout(420)
def test_two_hundred_memories_are_recalled_by_the_next_request_of_another_process_on_lite(stack: Stack) -> None:
    _recalls_at_once(stack)


@pytest.mark.timeout(420)
def test_two_hundred_memories_are_recalled_by_the_next_request_of_another_process_on_a_server() -> None:
    with Stack(MilvusServer(), doors=2) as stack:
        _recalls_at_once(stack)

"""No acknowledged memory is lost and none is doubled, whatever is killed."""

import threading
import time
from collections import Counter
from uuid import uuid4

import httpx2
from tests.e2e.spine.conftest import all_indexed, all_memories, recalled, sentence, until

from memplane_core.testing.stack import Stack, StackTenant

WRITES = 500


def _write_all(stack: Stack, tenant: StackTenant, acknowledged: list[str], *, failures: list[str]) -> None:
    """Write one by one, each again under its key until it is acknowledged."""
    with stack.client(tenant) as client:
        for n in range(WRITES):
            key = uuid4().hex
            deadline = time.monotonic() + 60
            while True:
                try:
                    answer = client.post(
                        "/v1/memories", json={"content": sentence(n)}, headers={"Idempotency-Key": key}
                    )
                    if answer.status_code in (201, 202):
                        acknowledged.append(answer.json()["id"])
                        break
                except httpx2.TransportError:
                    pass
                if time.monotonic() > deadline:
                    failures.append(f"write {n} was never acknowledged")
                    return
                time.sleep(0.05)


def test_worker_retrieval_and_milvus_killed_in_turn_while_five_hundred_are_written(stack: Stack) -> None:
    tenant = stack.make_tenant("killed")
    acknowledged: list[str] = []
    failures: list[str] = []
    writer = threading.Thread(
        target=_write_all, args=(stack, tenant, acknowledged), kwargs={"failures": failures}, daemon=True
    )
    writer.start()

    def reached(count: int) -> None:
        until(lambda: len(acknowledged) >= count or bool(failures), within_s=120, what=f"{count} acknowledged")
        assert failures == []

    reached(100)
    stack.worker.kill()
    reached(180)
    stack.worker.start()
    reached(240)
    stack.retrievals[0].kill()
    stack.retrievals[0].start()
    reached(360)
    stack.milvus.kill()
    reached(420)
    stack.milvus.start()
    writer.join(timeout=120)
    assert not writer.is_alive()
    assert failures == []

    with stack.client(tenant) as client:
        until(lambda: all_indexed(client), within_s=120, what="all are indexed")
        memories = all_memories(client)
        assert Counter(memory["content"] for memory in memories) == Counter(sentence(n) for n in range(WRITES))
        assert {memory["id"] for memory in memories} == set(acknowledged)
        by_content = {memory["content"]: memory["id"] for memory in memories}
        missed = [n for n in range(WRITES) if recalled(client, sentence(n)).count(by_content[sentence(n)]) != 1]
        assert missed == []

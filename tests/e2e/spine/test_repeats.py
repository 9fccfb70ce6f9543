"""Fifty requests with one Idempotency-Key have one effect and equal answers, whatever is killed."""

import asyncio
import time
from typing import Any

import httpx2
import pytest
from tests.e2e.spine.conftest import all_memories, sentence

from memplane_core.testing.stack import Stack, StackTenant

pytestmark = pytest.mark.anyio

AT_ONCE = 50
KEY = {"Idempotency-Key": "one for all"}


def _client(stack: Stack, tenant: StackTenant, *, door: int) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=stack.gateways[door].url, headers={"Authorization": f"Bearer {tenant.key}", **KEY}, timeout=60
    )


async def _until_answered(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> httpx2.Response:
    """Send it again and again, as a client does that hears nothing, or that it should."""
    deadline = time.monotonic() + 120
    while True:
        try:
            answer = await client.post(path, json=body)
            if answer.status_code < 400:
                return answer
            assert answer.status_code in (409, 503, 504), answer.text
        except httpx2.TransportError:
            pass
        assert time.monotonic() < deadline, "it was never answered"
        await asyncio.sleep(0.2)


async def test_fifty_at_once_at_two_doors(stack: Stack) -> None:
    tenant = stack.make_tenant("fifty at once")
    body = {"content": sentence(1), "on_duplicate": "create"}
    async with _client(stack, tenant, door=0) as one, _client(stack, tenant, door=1) as two:
        answers = await asyncio.gather(
            *(_until_answered(one if n % 2 else two, "/v1/memories", body) for n in range(AT_ONCE))
        )
    assert {answer.status_code for answer in answers} == {201}
    # The index may hear of the memory between one answer and the next.
    told = [{**answer.json(), "index_state": None} for answer in answers]
    assert told == [told[0]] * AT_ONCE
    with stack.client(tenant) as client:
        assert [memory["id"] for memory in all_memories(client)] == [answers[0].json()["id"]]


async def test_retrieval_killed_after_its_commit_and_before_it_answered_anybody(stack: Stack) -> None:
    tenant = stack.make_tenant("killed after the commit")
    # Without a worker nothing is indexed, so that answers are held back while the memory is stored for good.
    body = {"memories": [{"content": sentence(2), "on_duplicate": "create"}], "wait": "index"}
    stack.worker.kill()
    try:
        async with _client(stack, tenant, door=0) as client:
            asked = [asyncio.create_task(_until_answered(client, "/v1/memories/batch", body)) for _ in range(AT_ONCE)]
            with stack.client(tenant, door=1) as other:
                deadline = time.monotonic() + 25
                while not await asyncio.to_thread(all_memories, other):
                    assert time.monotonic() < deadline, "nothing was committed"
                    await asyncio.sleep(0.05)
            stack.retrievals[0].kill()
            assert not any(task.done() for task in asked)
            # In this thread: a process ends with the thread that started it.
            stack.retrievals[0].start()
            stack.worker.start()
            answers = await asyncio.gather(*asked)
    finally:
        if not stack.worker.running:
            stack.worker.start()
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers.get("idempotency-replayed") for answer in answers} == {"true"}
    assert len({answer.text for answer in answers}) == 1
    with stack.client(tenant) as client:
        [memory] = all_memories(client)
    assert [result["id"] for result in answers[0].json()["results"]] == [memory["id"]]

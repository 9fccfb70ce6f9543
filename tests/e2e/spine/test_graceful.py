"""Told to end, a process lets nobody down: not a request, not a task."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from itertools import count

import httpx2
import msgspec
import pytest
from tests.e2e.spine.conftest import all_indexed, all_memories, sentence, until

from memplane_core.testing.balancer import Balancer
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.stack import Stack

REQUESTS = 5_000
CLIENTS = 8
DRAIN_S = 4


class Installation(msgspec.Struct):
    """Two gateways behind a balancer, which share two retrieval processes behind another."""

    stack: Stack
    url: str
    gateways: list[ServiceProcess]
    retrievals: list[ServiceProcess]
    balancers: list[Balancer]


@pytest.fixture(scope="module")
def installation() -> Generator[Installation]:
    with ExitStack() as opening:
        stack = opening.enter_context(Stack(MilvusLite(), env={"MEMPLANE_SERVER__DRAIN_S": str(DRAIN_S)}))
        retrievals = [*stack.retrievals, opening.enter_context(ServiceProcess("memplane_retrieval", env=stack.env))]
        behind = opening.enter_context(Balancer([process.url for process in retrievals]))
        until(lambda: len(behind.ready) == 2, within_s=20, what="both retrieval processes are ready")
        env = stack.env | {"MEMPLANE_ENDPOINTS__RETRIEVAL_URL": behind.url}
        gateways = [opening.enter_context(ServiceProcess("memplane_gateway", env=env)) for _ in range(2)]
        front = opening.enter_context(Balancer([process.url for process in gateways]))
        until(lambda: len(front.ready) == 2, within_s=20, what="both gateways are ready")
        yield Installation(stack, front.url, gateways, retrievals, [front, behind])


def _end(doors: list[tuple[ServiceProcess, Balancer]]) -> None:
    """Tell the first process of each to end, as a kubelet does; wait until nobody is sent there, and it is gone."""
    for process, _ in doors:
        os.kill(process.pid, signal.SIGTERM)
    for process, balancer in doors:
        until(lambda url=process.url, ready=balancer.ready: url not in ready, within_s=10, what="it is not ready")
    assert all(process.running for process, _ in doors)  # it says so first, and ends later
    for process, _ in doors:
        until(lambda process=process: not process.running, within_s=30, what="it has ended")


def test_each_door_is_told_to_end_and_started_again_and_none_of_five_thousand_requests_fails(
    installation: Installation,
) -> None:
    tenant = installation.stack.make_tenant("graceful")
    turns = count()
    over = threading.Event()
    failures: list[str] = []
    statuses: Counter[int] = Counter()

    def ask() -> None:
        with httpx2.Client(
            base_url=installation.url, headers={"Authorization": f"Bearer {tenant.key}"}, timeout=60
        ) as client:
            while (turn := next(turns)) < REQUESTS or not over.is_set():
                try:
                    if turn % 25 == 0:
                        answer = client.post("/v1/memories", json={"content": sentence(turn)})
                    elif turn % 25 == 1:
                        answer = client.post("/v1/memories/search", json={"query": sentence(turn), "touch": False})
                    else:
                        answer = client.get("/v1/memories", params={"limit": 2})
                    statuses[answer.status_code] += 1
                except httpx2.HTTPError as error:
                    failures.append(f"{turn}: {error!r}")

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for pair in zip(installation.gateways, installation.retrievals, strict=True):
        doors = list(zip(pair, installation.balancers, strict=True))
        asked = sum(statuses.values())
        _end(doors)
        assert sum(statuses.values()) > asked  # others answered meanwhile
        for process, balancer in doors:
            process.stop()
            process.start()
            until(lambda url=process.url, ready=balancer.ready: url in ready, within_s=20, what="it is ready again")
    over.set()
    for client in clients:
        client.join(200)
    assert failures == []
    assert set(statuses) <= {200, 201, 202}, statuses
    assert sum(statuses.values()) >= REQUESTS


def test_a_worker_told_to_end_loses_none_of_five_hundred_memories(installation: Installation) -> None:
    stack = installation.stack
    tenant = stack.make_tenant("tasks")
    with stack.client(tenant) as client:
        for start in range(0, 500, 100):
            body = {"memories": [{"content": sentence(n)} for n in range(start, start + 100)]}
            client.post("/v1/memories/batch", json=body).raise_for_status()
            if start == 200:
                stack.worker.signal(signal.SIGTERM)
        until(lambda: not stack.worker.running, within_s=60, what="the worker has ended")
        stack.worker.stop()
        stack.worker.start()
        until(lambda: all_indexed(client), within_s=90, what="all is indexed")
        assert len({memory["id"] for memory in all_memories(client)}) == 500

"""A tenant moves to another model and back while it is searched and edited all the time."""

import random
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from tests.e2e.spine.conftest import all_indexed, sentence, until

from memplane_core.testing.stack import Stack, StackTenant

MEMORIES = 600
OTHER = "multilingual-e5-small"


class Load:
    """Searches and edits of one tenant, each held against what is known to be there at that moment.

    Attributes:
        wrong: What was not as it has to be, in words.
        searches: Made so far.
        edits: Made so far.
    """

    def __init__(self, stack: Stack, tenant: StackTenant, texts: dict[str, str]) -> None:
        self._stack = stack
        self._tenant = tenant
        self._texts = texts
        self._stopped = threading.Event()
        self.wrong: list[str] = []
        self.searches = 0
        self.edits = 0

    @contextmanager
    def running(self) -> Generator["Load"]:
        """Until the block ends."""
        # Searchers look for what nobody edits; the editor looks for what it has just edited or written.
        ids = sorted(self._texts)
        threads = [
            threading.Thread(target=self._guarded, args=(self._search, ids[200:], 0), daemon=True),
            threading.Thread(target=self._guarded, args=(self._search, ids[200:], 1), daemon=True),
            threading.Thread(target=self._guarded, args=(self._edit, ids[:200], 0), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join(timeout=60)

    def _guarded(self, work: Any, ids: list[str], door: int) -> None:
        try:
            with self._stack.client(self._tenant, door=door) as client:
                chosen = random.Random(door)
                while not self._stopped.is_set():
                    work(client, chosen.choice(ids))
                    time.sleep(0.05)
        except Exception as error:  # noqa: BLE001 - a thread's end must not pass in silence
            self.wrong.append(f"{work.__name__} ended: {error!r}")

    def _search(self, client: httpx2.Client, memory_id: str) -> None:
        self._look_for(client, memory_id, self._texts[memory_id])
        self.searches += 1

    def _edit(self, client: httpx2.Client, memory_id: str) -> None:
        text = sentence(10_000 + self.edits)
        if self.edits % 3:
            answer = client.patch(f"/v1/memories/{memory_id}", json={"content": text})
        else:
            answer = client.post("/v1/memories", json={"content": text})
        if answer.status_code not in (200, 201, 202):
            self.wrong.append(f"a write answered {answer.status_code}: {answer.text[:200]}")
            return
        self._look_for(client, answer.json()["id"], text)
        self.edits += 1

    def _look_for(self, client: httpx2.Client, memory_id: str, text: str) -> None:
        began = time.strftime("%X")
        answer = client.post("/v1/memories/search", json={"query": text, "top_k": 10, "touch": False})
        if answer.status_code != 200:
            self.wrong.append(f"{began} a search answered {answer.status_code}: {answer.text[:200]}")
            return
        body = answer.json()
        found = {result["id"]: result["content"] for result in body["results"]}
        if found.get(memory_id) != text:
            self.wrong.append(f"{began} {text!r} was found as {found.get(memory_id)!r} {body['degraded']}")


def progress(client: httpx2.Client, job: dict[str, Any]) -> dict[str, Any]:
    return client.get(f"/v1/jobs/{job['id']}").raise_for_status().json()


@pytest.mark.timeout(900)
def test_to_another_model_and_back_with_the_worker_killed_midway(stack: Stack) -> None:
    tenant = stack.make_tenant("moving")
    texts: dict[str, str] = {}
    with stack.client(tenant) as client, stack.admin() as admin:
        for start in range(0, MEMORIES, 250):
            wanted = [sentence(n) for n in range(start, start + 250)]
            body = {"memories": [{"content": text} for text in wanted]}
            answer = client.post("/v1/memories/batch", json=body).raise_for_status()
            texts |= {item["id"]: text for item, text in zip(answer.json()["results"], wanted, strict=True)}
        until(lambda: all_indexed(client), within_s=300, what="all are indexed")

        def generations() -> dict[int, dict[str, Any]]:
            listed = admin.get(f"/admin/v1/tenants/{tenant.id}/generations").raise_for_status().json()
            return {one["number"]: one for one in listed["results"]}

        with Load(stack, tenant, texts).running() as load:
            started = client.post("/v1/jobs", json={"kind": "reindex", "model": OTHER, "grace_s": 3600})
            assert started.status_code == 202
            job = started.json()
            until(
                lambda: progress(client, job)["progress"]["done"] > MEMORIES // 3,
                within_s=300,
                what="a third is embedded anew",
            )
            stack.worker.kill()
            assert progress(client, job)["state"] == "running"
            stack.worker.start()
            until(lambda: progress(client, job)["state"] != "running", within_s=300, what="the reindex has ended")
            ended = progress(client, job)
            assert (ended["state"], ended["error"], ended["result"]["failed"]) == ("done", None, 0)
            assert [(n, one["state"], one["model"]) for n, one in generations().items()] == [
                (1, "kept", "all-MiniLM-L6-v2"),
                (2, "active", OTHER),
            ]
            time.sleep(3)  # of searches and edits on the new one alone
            assert load.wrong == []

            back = admin.post(f"/admin/v1/tenants/{tenant.id}/generations/1/activate", json={"grace_s": 3600})
            assert back.status_code == 202
            until(
                lambda: progress(client, back.json())["state"] == "done", within_s=300, what="the old one answers again"
            )
            assert generations()[1]["state"] == "active"
            time.sleep(3)
        assert load.wrong == []
        assert (load.searches > 100, load.edits > 50) == (True, True)
        until(lambda: all_indexed(client), within_s=60, what="all are indexed")
        for one in generations().values():
            assert (one["failed"], one["embedded"]) == (0, one["chunks"])

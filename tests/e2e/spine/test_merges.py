"""A merge of a tenant's memories on the whole platform, whose worker is killed on the way."""

from typing import Any

import httpx2
import pytest
from tests.e2e.spine.conftest import all_indexed, all_memories, recalled, sentence, until

from memplane_core.testing.stack import Stack

TEXTS = 60


def written(client: httpx2.Client) -> list[list[str]]:
    """Ids of three copies of each of many texts."""
    fields: dict[str, Any] = {"user_id": "u", "occurred_at": "2026-03-01T12:00:00Z"}
    made = [
        {"content": content, "scene": [f"scene {copy}"], **fields}
        for n in range(TEXTS)
        for copy, content in enumerate((sentence(n), sentence(n).lower() + "!", "So, " + sentence(n)))
    ]
    answer = client.post("/v1/memories/batch", json={"memories": made}).raise_for_status().json()
    ids = [item["id"] for item in answer["results"]]
    return [ids[n : n + 3] for n in range(0, len(ids), 3)]


def job(client: httpx2.Client, job_id: str) -> dict[str, Any]:
    return client.get(f"/v1/jobs/{job_id}").raise_for_status().json()


@pytest.mark.timeout(300)
def test_a_worker_is_killed_while_copies_are_made_one_and_all_of_them_come_back(stack: Stack) -> None:
    tenant = stack.make_tenant("merged")
    with stack.client(tenant) as client:
        groups = written(client)
        until(lambda: all_indexed(client), within_s=90, what="all are indexed")
        before = {memory["id"]: memory for memory in all_memories(client)}
        started = client.post("/v1/jobs", json={"kind": "merge"}).raise_for_status().json()
        until(lambda: job(client, started["id"])["state"] == "running", within_s=60, what="the job is running")
        stack.worker.kill()
        stack.worker.start()
        until(lambda: job(client, started["id"])["state"] == "done", within_s=120, what="the job is done")
        assert job(client, started["id"])["result"] == {
            "looked_at": 3 * TEXTS,
            "waiting": 0,
            "clusters": TEXTS,
            "merged": 2 * TEXTS,
        }

        active = {memory["id"]: memory for memory in all_memories(client)}
        survivors = [next(memory_id for memory_id in group if memory_id in active) for group in groups]
        assert set(survivors) == active.keys()
        assert {tuple(sorted(memory["scene"])) for memory in active.values()} == {("scene 0", "scene 1", "scene 2")}
        found = recalled(client, sentence(7), top_k=5)
        assert (found[0], len(set(found) - active.keys())) == (survivors[7], 0)

        for survivor in survivors:
            undone = client.post("/v1/memories/merge/undo", json={"survivor": survivor}).raise_for_status().json()
            assert (len(undone["restored"]), undone["complete"]) == (2, True)
        until(lambda: all_indexed(client), within_s=90, what="all are indexed again")
        grown = ("version", "updated_at", "last_accessed_at", "access_count")  # the search above was a use, or none
        after = {memory["id"]: memory for memory in all_memories(client)}
        for memory_id, memory in before.items():
            assert {**after[memory_id], **{name: memory[name] for name in grown}} == memory

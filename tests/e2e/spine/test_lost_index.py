"""A Milvus that has lost everything: no memory is missed meanwhile, and the index fills again without a command."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.e2e.spine.conftest import all_indexed, recalled, sentence, until

from memplane_core.domain.collections import CollectionName
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.stack import Stack, StackTenant
from memplane_core.vectors import MilvusIndex

MEMORIES = 60


async def held(stack: Stack, tenant: StackTenant) -> set[str]:
    """Memories in the tenant's first collection."""
    index = MilvusIndex(MilvusSettings(uri=stack.milvus.uri))
    name = CollectionName(TenantId(UUID(tenant.id)), 1)
    try:
        return {str(key.memory_id) for key in (await index.keys_after(name.tenant, name, limit=1000)).keys}
    finally:
        await index.close()


@pytest.mark.timeout(400)
def test_it_fills_again_by_itself_and_nothing_is_missed_meanwhile(stack: Stack) -> None:
    assert isinstance(stack.milvus, MilvusLite)
    quiet, busy = stack.make_tenant("wiped and quiet"), stack.make_tenant("wiped and busy")
    with stack.client(quiet) as idle, stack.client(busy) as client:
        ids: dict[str, list[str]] = {}
        body = {"memories": [{"content": sentence(n)} for n in range(MEMORIES)]}
        for tenant, its in ((quiet, idle), (busy, client)):
            written = its.post("/v1/memories/batch", json=body).raise_for_status().json()["results"]
            ids[tenant.id] = [one["id"] for one in written]
            until(lambda its=its: all_indexed(its), within_s=60, what="all are indexed")

        stack.milvus.stop()
        stack.milvus.wipe()
        stack.milvus.start()

        # One tenant goes on writing, so that its collection is made anew before anybody has looked for it.
        ids[busy.id].append(client.post("/v1/memories", json={"content": sentence(99)}).json()["id"])
        missed: list[str] = []

        def all_there() -> bool:
            for its, tenant in ((idle, quiet), (client, busy)):
                n = len(missed) % MEMORIES
                missed.append("" if ids[tenant.id][n] in recalled(its, sentence(n)) else sentence(n))
            return all(asyncio.run(held(stack, its)) == set(ids[its.id]) for its in (quiet, busy))

        until(all_there, within_s=150, what="every row is in the index again")
        assert set(missed) == {""}
        until(
            lambda: idle.post("/v1/memories/search", json={"query": "x"}).json()["degraded"] == [],
            within_s=30,
            what="searches use the index again",
        )
        assert [n for n in range(MEMORIES) if ids[quiet.id][n] not in recalled(idle, sentence(n))] == []

        def last_job() -> dict[str, Any]:
            return idle.get("/v1/jobs").json()["results"][0]

        until(lambda: last_job()["state"] == "done", within_s=60, what="the job has ended")
        job = last_job()
        assert (job["kind"], job["started_by"], job["result"]["requeued"]) == ("reconcile", "memplane", MEMORIES)

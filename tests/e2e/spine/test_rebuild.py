"""A Milvus that has lost collections answers again after one command, and the command line shows what there is."""

import asyncio
import json
import subprocess
import sys
from typing import Any
from uuid import UUID

from tests.e2e.spine.conftest import all_indexed, recalled, sentence, until

from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.testing.stack import Stack, StackTenant
from memplane_core.vectors import MilvusIndex

MEMORIES = 60


def memplane(stack: Stack, *words: str) -> Any:
    """Run the command line against the stack; what it prints as JSON."""
    env = {"MEMPLANE_URL": stack.gateways[0].url, "MEMPLANE_ADMIN_KEY": stack.admin_key}
    command = [sys.executable, "-m", "memplane_standalone", *words, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert ended.returncode == 0, ended.stderr or ended.stdout
    return json.loads(ended.stdout)


def generation_of(tenant: StackTenant, number: int) -> Generation:
    return Generation(
        tenant=TenantId(UUID(tenant.id)),
        number=number,
        model="all-MiniLM-L6-v2",
        dim=384,
        index_type="HNSW",
        index_params={},
        state="ready",
    )


async def rows(stack: Stack, generation: Generation, *, drop: bool = False) -> int:
    """How many rows a collection holds; 0 once it is dropped."""
    index = MilvusIndex(MilvusSettings(uri=stack.milvus.uri))
    try:
        if drop:
            await index.drop(generation.tenant, generation)
        return await index.count(generation.tenant, generation)
    finally:
        await index.close()


def test_a_lost_collection_is_made_anew_from_postgres_by_one_command(stack: Stack) -> None:
    tenant = stack.make_tenant("rebuilt")
    with stack.client(tenant) as client:
        body = {"memories": [{"content": sentence(n)} for n in range(MEMORIES)]}
        written = client.post("/v1/memories/batch", json=body).raise_for_status().json()["results"]
        until(lambda: all_indexed(client), within_s=60, what="all are indexed")
        assert asyncio.run(rows(stack, generation_of(tenant, 1))) == MEMORIES
        assert asyncio.run(rows(stack, generation_of(tenant, 1), drop=True)) == 0

        [forecast] = memplane(stack, "reindex", "--tenant", "rebuilt", "--dry-run")
        assert forecast["result"] == {"memories": MEMORIES, "to_embed": 0, "to_take_over": MEMORIES}
        [job] = memplane(stack, "rebuild-index", "--tenant", "rebuilt")
        assert (job["state"], job["result"]["failed"], job["progress"]["done"]) == ("done", 0, MEMORIES)
        listed = memplane(stack, "generations", "rebuilt")
        assert [(one["number"], one["state"], one["pending"]) for one in listed] == [(1, "kept", 0), (2, "active", 0)]
        assert asyncio.run(rows(stack, generation_of(tenant, 2))) == MEMORIES
        for n in (0, 30, MEMORIES - 1):
            assert written[n]["id"] in recalled(client, sentence(n))

"""A person with five thousand memories is erased over the whole platform, in sight of a byte search of every store."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast
from uuid import UUID, uuid4

import httpx2
from pymilvus import MilvusClient
from redis.asyncio import Redis
from tests.e2e.spine.conftest import recalled, sentence, until

from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings, PostgresSettings
from memplane_core.storage import bootstrap
from memplane_core.storage.generations import active_generation
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.stack import Stack, StackTenant

MEMORIES: Final = 5_000
OTHERS: Final = 200
LIMIT_S: Final = 20.0


async def fill(stack: Stack, tenant: StackTenant, mark: str) -> None:
    """Thousands of memories of `mark`, which is in every text field, and some of another; vectors need no model."""
    settings = PostgresSettings.model_validate({"url": stack.env["MEMPLANE_POSTGRES__URL"]})
    async with Database.open(settings) as database:
        tenant_id = TenantId(UUID(tenant.id))
        async with database.tenant(tenant_id) as connection:
            generation = await active_generation(tenant_id, connection)
        desk = MemoryDesk(database, tenant_id, HashEmbedder(dim=generation.dim, models=(generation.model,)))
        for start in range(0, MEMORIES, 500):
            await desk.write(
                *(f"{mark} {sentence(n)}" for n in range(start, start + 500)),
                user_id=mark,
                agent_id=f"agent of {mark}",
                session_id=f"{mark} {start}",
                actor=mark,
                scene=[mark, "home"],
                metadata={"about": mark, mark: [mark]},
                source=mark,
            )
        await desk.write(*(f"other {sentence(n)}" for n in range(OTHERS)), user_id="another")


def use(client: httpx2.Client, mark: str) -> None:
    """What an app does with a user: named writes, repeats, changes, a move, a deletion, searches."""
    body = {"content": f"{mark} was here", "user_id": mark, "external_id": f"{mark}/1"}
    for _ in range(2):
        client.post("/v1/memories", json=body, headers={"Idempotency-Key": mark}).raise_for_status()
    made = client.post("/v1/memories", json={"content": f"{mark} goes", "user_id": mark}).raise_for_status().json()
    path = f"/v1/memories/{made['id']}"
    client.patch(path, json={"content": f"{mark} went", "metadata": {"was": mark}}).raise_for_status()
    moved = client.patch(path, json={"user_id": "another", "content": "went", "metadata": {}})
    moved.raise_for_status()
    gone = client.post("/v1/memories", json={"content": f"{mark} deleted", "user_id": mark}).raise_for_status().json()
    client.patch(f"/v1/memories/{gone['id']}", json={"content": f"{mark} changed"}).raise_for_status()
    client.delete(f"/v1/memories/{gone['id']}").raise_for_status()
    for query in (mark, f"where was {mark}"):
        client.post("/v1/memories/search", json={"query": query, "filters": {"user_id": mark}}).raise_for_status()


async def in_postgres(stack: Stack, text: str) -> dict[str, int]:
    """Rows of any table of any schema, every column as text, by table."""
    database = stack.env["MEMPLANE_POSTGRES__URL"].rpartition("/")[2].partition("?")[0]
    connection = cast("Any", await bootstrap.connect(stack.postgres.superuser_url(database)))
    try:
        tables = await connection.fetch(
            "SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm')"
            " AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        )
        found: dict[str, int] = {}
        for name in (table["name"] for table in tables):
            count = await connection.fetchval(f"SELECT count(*) FROM {name} t WHERE position($1 IN t::text) > 0", text)
            if count:
                found[name] = count
        return found
    finally:
        await connection.close()


async def in_valkey(stack: Stack, text: str) -> list[bytes]:
    """Keys that have it in their name or anywhere in what they hold."""
    client: Redis = Redis.from_url(stack.valkey.url, protocol=3)
    reads: dict[bytes, Callable[[bytes], Awaitable[object]]] = {
        b"string": client.get,
        b"list": lambda key: client.lrange(key, 0, -1),  # pyright: ignore[reportReturnType]
        b"set": client.smembers,  # pyright: ignore[reportAssignmentType]
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"hash": client.hgetall,  # pyright: ignore[reportAssignmentType]
        b"stream": client.xrange,
    }
    try:
        found: list[bytes] = []
        for key in cast("Sequence[bytes]", await client.keys("*")):
            kind = cast("bytes", await client.type(key))
            held = repr((key, await reads[kind](key) if kind in reads else None))
            if text in held:
                found.append(key)
        return found
    finally:
        await client.aclose()


def in_milvus(stack: Stack, tenant: StackTenant, text: str) -> tuple[int, int]:
    """Rows of the tenant's collection, and those of them that have it in any field."""
    client: Any = MilvusClient(uri=MilvusSettings(uri=stack.milvus.uri).uri)
    try:
        name = f"mp_{UUID(tenant.id).hex}_g1"
        rows = client.query(name, filter="", output_fields=["*"], limit=16_384, consistency_level="Strong")
        return len(rows), sum(text in repr(row) for row in rows)
    finally:
        client.close()


def rows_in_milvus(stack: Stack, tenant: StackTenant) -> int:
    """How many there are; 0 while there is no collection."""
    client: Any = MilvusClient(uri=MilvusSettings(uri=stack.milvus.uri).uri)
    try:
        name = f"mp_{UUID(tenant.id).hex}_g1"
        if not client.has_collection(name):
            return 0
        [row] = client.query(name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])
    finally:
        client.close()


def vectors(stack: Stack, tenant: StackTenant) -> int:
    """Cached vectors of the tenant, of texts and of queries."""
    return len(asyncio.run(in_valkey(stack, f"mp:emb:2:{UUID(tenant.id).hex}")))


def test_five_thousand_memories_are_gone_from_every_store_within_twenty_seconds(stack: Stack) -> None:
    tenant = stack.make_tenant("to forget somebody")
    mark = f"mark{uuid4().hex}"
    asyncio.run(fill(stack, tenant, mark))
    with stack.client(tenant) as client:
        use(client, mark)
        expected = MEMORIES + 1 + OTHERS + 1
        until(lambda: rows_in_milvus(stack, tenant) >= expected, within_s=120, what="all are indexed")
        before = asyncio.run(in_postgres(stack, mark))
        assert len({name.partition("_p")[0] for name in before}) >= 4, before
        assert in_milvus(stack, tenant, mark)[1] > MEMORIES
        assert vectors(stack, tenant) > 0

        began = time.monotonic()
        asked = client.post("/v1/erasures", json={"user_id": mark})
        assert asked.status_code == 202, asked.text
        late = client.post("/v1/memories", json={"content": "late", "user_id": mark})
        assert (late.status_code, late.json()["code"]) == (409, "erasure_under_way")
        assert late.json()["id"] == asked.json()["id"]
        view: dict[str, Any] = {}

        def done() -> bool:
            view.update(client.get(asked.headers["Location"]).raise_for_status().json())
            return view["state"] != "running"

        until(done, within_s=120, what="it has ended")
        took = time.monotonic() - began
        print(f"erased {view['erased']} in {took:.1f} s")  # noqa: T201 - the figure that the promise is about

        assert (view["state"], view["error"]) == ("done", None), view
        assert view["erased"]["memories"] == MEMORIES + 1
        assert vectors(stack, tenant) == 0
        assert asyncio.run(in_postgres(stack, mark)) == {}
        assert asyncio.run(in_valkey(stack, mark)) == []
        assert in_milvus(stack, tenant, mark) == (OTHERS + 1, 0)
        assert took < LIMIT_S

        listed = client.get("/v1/memories", params={"limit": 1000}).json()["results"]
        assert len(listed) == OTHERS + 1
        assert {memory["user_id"] for memory in listed} == {"another"}
        [found] = [memory["id"] for memory in listed if memory["content"] == f"other {sentence(7)}"]
        assert found in recalled(client, f"other {sentence(7)}")
        client.post("/v1/memories", json={"content": "anew", "user_id": mark}).raise_for_status()

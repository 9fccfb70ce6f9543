"""Collections are made once whoever asks, loaded when needed, and hold what they were made for."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, cast
from uuid import uuid4

import anyio
import grpc.aio
import msgspec
import pytest
from pymilvus import MilvusClient

from memplane_core.domain.errors import IndexMismatch, IndexUnavailable
from memplane_core.domain.index import Generation, IndexFilter
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.rows import eventually, index_row, unit_vectors
from memplane_core.vectors import MilvusIndex

pytestmark = pytest.mark.anyio

ANY = IndexFilter(alive_at=0)

ENSURE_AND_WRITE = """
import asyncio, sys, msgspec
from memplane_core.domain.index import Generation
from memplane_core.settings import MilvusSettings
from memplane_core.testing.rows import index_row, unit_vectors
from memplane_core.vectors import MilvusIndex

async def main(uri, generation, number):
    index = MilvusIndex(MilvusSettings(uri=uri))
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    await index.ensure(generation.tenant, generation)
    await index.upsert(generation.tenant, generation, [index_row(number, unit_vectors(1, generation.dim)[0])])
    await index.close()

asyncio.run(main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Generation), int(sys.argv[3])))
"""


async def test_two_processes_and_five_tasks_make_one_collection_at_once(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation
) -> None:
    encoded = msgspec.json.encode(generation).decode()
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ENSURE_AND_WRITE, milvus.uri, encoded, str(number)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(2)
    ]
    for process in processes:
        assert process.stdout
        assert await process.stdout.readline() == b"ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write(b"go\n")
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(index.ensure, generation.tenant, generation)
    for process in processes:
        await process.communicate()
        assert process.returncode == 0
    assert await index.count(generation.tenant, generation) == 2


async def test_a_generation_of_another_dimension_is_refused_and_both_are_named(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation
) -> None:
    await index.ensure(generation.tenant, generation)
    other = msgspec.structs.replace(generation, dim=16, model="larger")
    for _ in range(2):
        with pytest.raises(IndexMismatch, match=r"dimension 8.*'larger'.*16"):
            await index.ensure(generation.tenant, other)
    vector = unit_vectors(1, 16)[0]
    fresh = MilvusIndex(MilvusSettings(uri=milvus.uri))  # has not looked at the collection yet
    with pytest.raises(IndexMismatch):
        await fresh.search(generation.tenant, other, vector, limit=1, where=ANY)
    with pytest.raises(IndexMismatch):
        await fresh.upsert(generation.tenant, other, [index_row(1, vector)])
    await fresh.close()
    await index.ensure(generation.tenant, generation)
    assert await index.count(generation.tenant, generation) == 0


async def test_a_dropped_collection_can_be_made_again(index: MilvusIndex, generation: Generation) -> None:
    tenant, row = generation.tenant, index_row(1, unit_vectors(1, generation.dim)[0])
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [row])
    await index.drop(tenant, generation)
    with pytest.raises(IndexUnavailable):
        await index.upsert(tenant, generation, [row])
    await index.ensure(tenant, generation)
    assert await index.count(tenant, generation) == 0
    await index.upsert(tenant, generation, [row])
    assert await index.count(tenant, generation) == 1


@pytest.mark.parametrize(("index_type", "params"), [("IVF_FLAT", {"nlist": 16, "nprobe": 16}), ("AUTOINDEX", {})])
async def test_the_other_index_types_work(
    index: MilvusIndex, generation: Generation, index_type: str, params: dict[str, int]
) -> None:
    generation = msgspec.structs.replace(generation, index_type=index_type, index_params=params)
    tenant, vectors = generation.tenant, unit_vectors(20, generation.dim)
    await index.ensure(tenant, generation)
    await index.upsert(tenant, generation, [index_row(n, vectors[n]) for n in range(20)])
    hits = await eventually(
        lambda: index.search(tenant, generation, vectors[3], limit=20, where=ANY), lambda hits: len(hits) == 20
    )
    assert len(hits) == 20
    assert hits[0].int == 3


@pytest.fixture
def rpcs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Returns the names of the calls that reached the network since it was last asked."""
    names: list[str] = []
    multi_callable: Any = cast("Any", grpc.aio.UnaryUnaryMultiCallable).__subclasses__()[0]
    original = multi_callable.__call__

    def counted(self: Any, *args: object, **kwargs: object) -> object:
        names.append(self._method.decode().rpartition("/")[2])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(multi_callable, "__call__", counted)

    def taken() -> list[str]:
        taken, names[:] = list(names), []
        return taken

    return taken


async def test_each_call_is_one_call_to_the_server(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation, rpcs: Callable[[], list[str]]
) -> None:
    tenant, vectors = generation.tenant, unit_vectors(501, generation.dim)
    rows = [index_row(n, vectors[n]) for n in range(501)]
    assert index.batch_rows == 50  # not known yet
    await index.ensure(tenant, generation)
    assert index.batch_rows == (50 if isinstance(milvus, MilvusLite) else 500)
    await index.upsert(tenant, generation, rows[:1])  # fetches the schema
    rpcs()

    await index.ensure(tenant, generation)
    assert rpcs() == ["GetLoadState"]
    await index.upsert(tenant, generation, rows[: index.batch_rows])
    assert rpcs() == ["Upsert"]
    await index.upsert(tenant, generation, rows)
    assert rpcs() == ["Upsert"] * (11 if isinstance(milvus, MilvusLite) else 2)
    await index.search(tenant, generation, vectors[0], limit=100, where=ANY)
    assert rpcs() == ["Search"]
    await index.delete(tenant, generation, [row.key for row in rows])
    assert rpcs() == ["Delete"]
    assert await index.keys_present(tenant, generation, [row.key for row in rows]) == frozenset()
    assert rpcs() == ["Query"]
    await index.ping()
    assert rpcs() == ["GetVersion"]


async def test_each_event_loop_and_each_tenant_keeps_to_itself(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation
) -> None:
    tenant, row = generation.tenant, index_row(1, unit_vectors(1, generation.dim)[0])
    await index.ensure(tenant, generation)

    async def elsewhere() -> int:
        await index.upsert(tenant, generation, [row])
        try:
            return await index.count(tenant, generation)
        finally:
            await index.close()

    assert await anyio.to_thread.run_sync(lambda: asyncio.run(elsewhere())) == 1
    assert await index.count(tenant, generation) == 1
    stranger = TenantId(uuid4())
    for call in (
        index.search(stranger, generation, row.vector, limit=1, where=ANY),
        index.upsert(stranger, generation, [row]),
        index.delete(stranger, generation, [row.key]),
        index.count(stranger, generation),
        index.drop(stranger, generation),
    ):
        with pytest.raises(ValueError, match="belongs to tenant"):
            await call


async def test_two_databases_of_one_server_share_nothing(
    milvus: MilvusLite | MilvusServer, index: MilvusIndex, generation: Generation
) -> None:
    operator = MilvusClient(milvus.uri, dedicated=True)
    operator.create_database("apart")
    operator.close()
    apart = MilvusIndex(MilvusSettings(uri=milvus.uri, database="apart"))
    tenant, vectors = generation.tenant, unit_vectors(2, generation.dim)
    for where, number in ((index, 0), (apart, 1)):
        await where.ensure(tenant, generation)
        await where.upsert(tenant, generation, [index_row(number, vectors[number])])
    for where, number in ((index, 0), (apart, 1)):
        hits = await eventually(
            lambda where=where: where.search(tenant, generation, vectors[0], limit=10, where=ANY), bool
        )
        assert [memory.int for memory in hits] == [number]
        assert [key.memory_id.int for key in (await where.keys_after(tenant, generation, limit=10)).keys] == [number]
    await apart.drop(tenant, generation)
    assert await index.count(tenant, generation) == 1
    await apart.close()


async def test_a_first_call_to_a_server_that_is_not_there_fails_at_once(generation: Generation) -> None:
    index = MilvusIndex(MilvusSettings(uri=f"http://127.0.0.1:{reserved_port()}", timeout_s=2, load_timeout_s=2))
    started = time.monotonic()
    for call in (index.ping(), index.ensure(generation.tenant, generation), index.count(generation.tenant, generation)):
        with pytest.raises(IndexUnavailable) as raised:
            await call
        assert raised.value.retry_after
    assert time.monotonic() - started < 6
    await index.close()

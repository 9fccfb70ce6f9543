"""Postgres, both Milvus and plain Python say the same of any filter and any memory."""

import asyncio
import math
from collections.abc import AsyncGenerator, Generator
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplane_core.domain.filters import (
    FIELDS,
    Filter,
    Kind,
    index_superset,
    matches,
    operators_of,
    parse_filter,
    seen_by_index,
)
from memplane_core.domain.index import NEVER, Generation, IndexFilter, IndexKey, IndexRow
from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.storage import filter_sql
from memplane_core.storage.session import Database
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.rows import eventually, unit_vectors
from memplane_core.vectors import MilvusIndex

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

CASES = 2_000
ALIVE_AT = 1778248560

# The values are those that the memories are made of.
TEXTS = ["u1", "U1", "u2", "a", "b", "ab", "é", "e\u0301", "退款", "👩‍👧", "\uffff", "%", "_", "'", '"', "\\", "\\'",
         "$1", "::text", "--", '") or true or ("', "x' or '1' == '1", "a\nb", "a\tb", " ", "null", "1", "true",
         "x' OR tenant_id IS NOT NULL --", "nobody's"]  # fmt: skip
KEYS = ["a", "b", "lang", r"a\.b", r"a\\b", "0", '") or true or ("', "退款", "x' or '1' == '1", "none"]
INNER_KEYS = ["a", "b", "lang", "a.b", "a\\b", "0", "退款"]
TIMES = [
    "2026-05-08T13:55:59Z", "2026-05-08T13:55:59.5Z", "2026-05-08T13:56:00", "2026-05-08T14:56:00+01:00",
    "2026-05-08T13:56:00.000001Z", "2026-05-08T13:56:00.999999Z", 1778248561, 1778248560.5, "2026-05-09T13:56:00Z",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", -3_000_000_000,
]  # fmt: skip
NUMBERS = [
    0,
    1,
    2,
    3,
    5,
    -1,
    0.1,
    0.5,
    1 / 3,
    1.0,
    2.5,
    1e16,
    1e23,
    5e-324,
    2**53 + 1,
    float(2**53),
    10**30,
    1e30,
    -0.0,
]
SCALARS = st.sampled_from([*TEXTS, *NUMBERS, True, False, ""])
JSON = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER_KEYS), inner, max_size=2),
    max_leaves=4,
)
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(TEXTS),
    "tags": st.sampled_from(TEXTS[:10]),
    "number": st.sampled_from(NUMBERS),
    "flag": st.booleans(),
    "time": st.sampled_from(TIMES),
    "id": st.integers(0, 299),  # a memory's number, put in its place below
    "json": JSON,
}
INDEXED = ["user_id", "agent_id", "session_id", "memory_type", "occurred_at", "expires_at"]


def _asked(kind: Kind, op: str) -> st.SearchStrategy[Json]:
    """One operator with what it takes."""
    value = VALUES[kind]
    match op:
        case "exists":
            taken: st.SearchStrategy[Any] = st.booleans()
        case "gt" | "gte" | "lt" | "lte":
            taken = st.sampled_from([*TEXTS, *NUMBERS]) if kind == "json" else value
        case "eq" | "ne":
            taken = value | st.none()
        case _:
            taken = _many(kind)
    return taken.map(lambda operand: {op: operand})


def _many(kind: Kind) -> st.SearchStrategy[list[Any]]:
    return st.lists(VALUES[kind] if kind == "tags" else VALUES[kind] | st.none(), min_size=1, max_size=4)


def _conditions(kind: Kind) -> st.SearchStrategy[Any]:
    """What can stand beside a field: a bare value or list, one operator or two."""
    one = st.one_of([_asked(kind, op) for op in operators_of(kind)])
    bare = (SCALARS if kind == "json" else VALUES[kind]) | st.none()
    return st.one_of(one, one, st.builds(dict[str, Any].__or__, one, one), bare, _many(kind))


CONDITIONS = {kind: _conditions(kind) for kind in VALUES}
PATHS = st.lists(st.sampled_from(KEYS), min_size=1, max_size=2).map(lambda steps: "metadata." + ".".join(steps))
MEMBERS = {
    **{name: st.tuples(st.just(name), CONDITIONS[field.kind]) for name, field in FIELDS.items()},
    "metadata": st.tuples(PATHS, CONDITIONS["json"]),
}
SOME = st.lists(
    st.one_of([MEMBERS[name] for name in (*FIELDS, *INDEXED, "user_id", "scene", *["metadata"] * 3)]),
    min_size=1,
    max_size=3,
)


@st.composite
def plain(draw: st.DrawFn) -> Json:
    """Some members; a function, whose name is short where the strategies themselves would be printed."""
    return dict(draw(SOME))


def _groups(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """Those that hold others, perhaps beside some members of their own."""
    several = st.lists(inner, min_size=1, max_size=3)
    group = st.one_of(
        several.map(lambda filters: {"AND": filters}),
        several.map(lambda filters: {"OR": filters}),
        inner.map(lambda one: {"NOT": one}),
    )
    return group | st.builds(dict[str, Any].__or__, plain(), group)


FILTERS = st.recursive(plain(), _groups, max_leaves=4)


def with_ids(raw: Any, ids: list[UUID]) -> Any:
    """The filter with ids where memories are numbered."""
    match raw:
        case dict():
            members = cast("dict[str, Any]", raw).items()
            return {
                key: _numbered(value, ids) if key in ("id", "superseded_by") else with_ids(value, ids)
                for key, value in members
            }
        case list():
            return [with_ids(inner, ids) for inner in cast("list[Any]", raw)]
        case _:
            return raw


def _numbered(raw: Any, ids: list[UUID]) -> Any:
    match raw:
        case dict():
            return {key: _numbered(value, ids) for key, value in cast("dict[str, Any]", raw).items()}
        case list():
            return [_numbered(value, ids) for value in cast("list[Any]", raw)]
        case int() if not isinstance(raw, bool):
            return str(ids[raw])
        case _:
            return raw


@pytest.fixture(scope="module")
def lite() -> Generator[MilvusLite]:
    with MilvusLite() as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Generator[MilvusServer]:
    with MilvusServer() as server:
        yield server


@pytest.fixture
async def indexes(
    lite: MilvusLite, server: MilvusServer, tenant: TenantId, everyone: list[Memory]
) -> AsyncGenerator[dict[str, MilvusIndex]]:
    """Both hold the memories, and look at every row."""
    opened = {name: MilvusIndex(MilvusSettings(uri=uri)) for name, uri in (("lite", lite.uri), ("server", server.uri))}
    for index in opened.values():
        await _fill(index, _generation(tenant), everyone)
    yield opened
    for index in opened.values():
        await index.close()


def _generation(tenant: TenantId) -> Generation:
    return Generation(
        tenant=tenant,
        number=1,
        model="test",
        dim=4,
        index_type="IVF_FLAT",
        index_params={"nlist": 1, "nprobe": 1},
        state="absent",
    )


async def _fill(index: MilvusIndex, generation: Generation, everyone: list[Memory]) -> None:
    await index.ensure(generation.tenant, generation)
    vectors = unit_vectors(len(everyone), 4)
    rows = [
        IndexRow(
            key=IndexKey(memory.id, 1, 0),
            vector=vectors[n],
            user_id=memory.user_id or "",
            agent_id=memory.agent_id or "",
            session_id=memory.session_id or "",
            memory_type=memory.memory_type,
            occurred_at=math.floor(memory.occurred_at.timestamp()),
            expires_at=NEVER if memory.expires_at is None else math.floor(memory.expires_at.timestamp()),
        )
        for n, memory in enumerate(everyone)
    ]
    for start in range(0, len(rows), index.batch_rows):
        await index.upsert(generation.tenant, generation, rows[start : start + index.batch_rows])

    async def size() -> int:
        return len(await _found(index, generation, index_superset(parse_filter({}), alive_at=0)))

    assert await eventually(size, lambda count: count == len(rows)) == len(rows)


async def _found(index: MilvusIndex, generation: Generation, where: IndexFilter) -> set[UUID]:
    vector = unit_vectors(1, 4, seed=1)[0]
    return set(await index.search(generation.tenant, generation, vector, limit=1_000, where=where))


async def _selected(database: Database, tenant: TenantId, where: Filter) -> set[UUID]:
    values: list[Any] = [tenant]
    sql = filter_sql.conditions(where, values)
    usage = "JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id" if filter_sql.needs_usage(where) else ""
    async with database.tenant(tenant) as connection:
        rows = await connection.fetch(f"SELECT m.id FROM memory m {usage} WHERE m.tenant_id = $1{sql}", *values)
    return {row["id"] for row in rows}


@settings(
    max_examples=CASES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(raw=FILTERS)
@pytest.mark.timeout(600)
async def test_postgres_finds_what_python_says_and_milvus_nothing_less(
    database: Database,
    tenant: TenantId,
    everyone: list[Memory],
    indexes: dict[str, MilvusIndex],
    *,
    raw: dict[str, Any],
) -> None:
    where = parse_filter(with_ids(raw, [memory.id for memory in everyone]))
    matching = {memory.id for memory in everyone if matches(where, memory)}

    superset = index_superset(where, alive_at=ALIVE_AT)
    alive = {memory.id for memory in everyone if memory.expires_at is None or memory.expires_at.timestamp() > ALIVE_AT}

    selected, *found = await asyncio.gather(
        _selected(database, tenant, where),
        *(_found(index, _generation(tenant), superset) for index in indexes.values()),
    )

    assert selected == matching
    for name, ids in zip(indexes, found, strict=True):
        assert matching & alive <= ids, name
        if seen_by_index(where):
            assert ids == matching & alive, name

"""Whatever a caller sends: an answer that says what is wrong with it, and what was stored can be read."""

from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.anyio

ODD = st.sampled_from(
    [
        "",
        " ",
        "a",
        "a\0b",
        "\x01",
        "\ud7ff",
        "\ufffe",
        "e\u0301",
        "ﷺ" * 50,
        "👩‍👧",
        "退款",
        "\"'\\",
        "\\u0000",
        "x" * 257,
        "忆" * 86,
    ]
)
NUMBERS = st.sampled_from([0, 1, -1, 0.5, 5, 1e16, 1.5e300, 5e-324, 2**31, 2**63, 10**30, -62135596801, 253402300800])
TIMES = st.sampled_from(
    ["2020-01-01T00:00:00", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.9999999Z", "2016-12-31T23:59:60Z", "now"]
)
SCALARS = st.one_of(ODD, NUMBERS, st.booleans(), st.none())
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "actor": SCALARS,
    "scene": st.lists(ODD, max_size=3) | SCALARS,
    "source": SCALARS,
    "memory_type": SCALARS,
    "user_id": SCALARS,
    "session_id": SCALARS,
    "importance": SCALARS,
    "priority": SCALARS,
    "pinned": SCALARS,
    "metadata": st.dictionaries(ODD, VALUES, max_size=3) | VALUES,
    "occurred_at": TIMES | SCALARS,
    "expires_at": TIMES | SCALARS,
}
WRITES = st.fixed_dictionaries(
    {"content": ODD},
    optional=FIELDS
    | {
        "external_id": SCALARS,
        "on_duplicate": st.sampled_from(["return", "update", "create", "?"]),
        "nonsense": VALUES,
    },
)
PATCHES = st.fixed_dictionaries({}, optional=FIELDS | {"content": SCALARS})
SEARCHES = st.fixed_dictionaries(
    {"query": ODD},
    optional={
        "top_k": NUMBERS,
        "candidates": NUMBERS,
        "now": TIMES | NUMBERS,
        "explain": st.booleans(),
        "filters": st.dictionaries(st.sampled_from(["user_id", "session_id", "memory_type", "x"]), SCALARS, max_size=2),
        "weights": st.dictionaries(st.sampled_from(["match", "recency", "x"]), NUMBERS, max_size=2),
    },
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Idempotency-Key": st.sampled_from(["k", "", " ", "x" * 256, b"\xff" * 200]),
        "If-Match": st.sampled_from(['"1"', "*", "", '"1", "2"', '"²"'.encode("latin1"), b"\xff"]),
        "Content-Type": st.sampled_from(["text/plain", "multipart/form-data", "application/json; charset=utf-16", "?"]),
    },
)
QUERIES = st.dictionaries(st.sampled_from(["user_id", "limit", "cursor", "x"]), ODD | NUMBERS.map(str), max_size=2)


@settings(max_examples=80, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(write=WRITES, patch=PATCHES, search=SEARCHES, query=QUERIES, headers=HEADERS)
async def test_is_taken_or_refused_and_never_an_error_of_ours(
    client: httpx2.AsyncClient,
    *,
    write: dict[str, Any],
    patch: dict[str, Any],
    search: dict[str, Any],
    query: dict[str, str],
    headers: dict[str, Any],
) -> None:
    good = (await client.post("/v1/memories", json={"content": "good", "on_duplicate": "create"})).json()
    path = f"/v1/memories/{good['id']}"
    answers = [
        written := await client.post("/v1/memories", json=write, headers=headers),
        await client.post("/v1/memories/batch", json={"memories": [write, {"content": "good"}, write]}),
        await client.patch(path, json=patch, headers=headers),
        await client.get("/v1/memories", params=query),
        await client.post("/v1/memories/search", json=search),
        everything := await client.post("/v1/memories/search", json={"query": "good", "top_k": 1000, "explain": True}),
        await client.delete(path, headers=headers),
    ]

    for answer in answers:
        assert answer.status_code < 500, (answer.request.method, answer.request.url, answer.text)
        assert answer.is_success or answer.headers["content-type"] == "application/problem+json"
    assert everything.status_code == 200
    if written.status_code == 201:
        read = await client.get(f"/v1/memories/{written.json()['id']}")
        assert read.status_code == 404 or read.json() | {"deduplicated": False} == written.json()

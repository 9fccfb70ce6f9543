"""Every operator on every kind of field, alone and nested, against one memory."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from memplane_core.domain.filters import matches, parse_filter
from memplane_core.domain.memory import Memory

AT = datetime(2026, 5, 8, 13, 56, 0, 500_000, tzinfo=UTC)
ID = "01990000-0000-7000-8000-000000000001"
OTHER = "01990000-0000-7000-8000-000000000002"
MEMORY = Memory(
    id=UUID(ID),
    external_id=None,
    content="remembered",
    actor="Ana",
    scene=["travel", "food"],
    source=None,
    memory_type="experience",
    user_id="u1",
    agent_id=None,
    session_id="s1",
    importance=0.5,
    priority=4,
    pinned=True,
    metadata={
        "lang": "zh",
        "n": 3,
        "half": 0.5,
        "yes": True,
        "none": None,
        "tags": ["a", 1, None, {"k": [1]}],
        "deep": {"er": {"x": "退"}, "a.b": 1, "back\\slash": 2},
        "empty": [],
    },
    occurred_at=AT,
    expires_at=None,
    valid_from=None,
    valid_to=None,
    superseded_by=None,
    created_at=AT,
    updated_at=AT,
    last_accessed_at=AT,
    access_count=0,
    version=2,
    state="active",
    merged_into=None,
    purge_at=None,
    index_state="indexed",
    index_error=None,
)
HOLDS: list[dict[str, Any]] = [
    {},
    # text
    {"actor": "Ana"},
    {"actor": {"ne": "ana"}},
    {"actor": ["Bob", "Ana"]},
    {"actor": {"in": [None, "Ana"]}},
    {"actor": {"nin": ["Bob", None]}},
    {"actor": {"gt": "AnZ"}},
    {"actor": {"gte": "Ana"}},
    {"actor": {"lt": "Anb"}},
    {"actor": {"lte": "Ana"}},
    {"actor": {"exists": True}},
    # text that is missing
    {"agent_id": None},
    {"agent_id": {"in": ["g", None]}},
    {"agent_id": {"ne": "g"}},
    {"agent_id": {"nin": ["g"]}},
    {"agent_id": {"exists": False}},
    {"NOT": {"agent_id": {"gt": "a"}}},
    {"NOT": {"agent_id": {"lte": "a"}}},
    # numbers
    {"priority": 4},
    {"priority": {"ne": 3.5}},
    {"priority": [1, 4.0]},
    {"priority": {"nin": [1, 2]}},
    {"priority": {"gt": 3.9, "lt": 5}},
    {"importance": {"gte": 0.5, "lte": 0.5}},
    {"access_count": 0},
    {"version": {"exists": True}},
    # flags
    {"pinned": True},
    {"pinned": {"ne": False}},
    {"pinned": [True, False]},
    {"pinned": {"nin": [False]}},
    {"pinned": {"exists": True}},
    # times
    {"occurred_at": "2026-05-08T15:56:00.5+02:00"},
    {"occurred_at": {"ne": "2026-05-08T13:56:00Z"}},
    {"occurred_at": [0, 1778248560.5]},
    {"occurred_at": {"nin": [0]}},
    {"occurred_at": {"gt": "2026-05-08T13:56:00", "lt": "2026-05-08T13:56:01"}},
    {"created_at": {"gte": 1778248560.5, "lte": 1778248560.5}},
    {"expires_at": None},
    {"NOT": {"expires_at": {"lt": "9999-01-01T00:00:00Z"}}},
    {"updated_at": {"exists": True}},
    {"last_accessed_at": {"gt": 0}},
    # id
    {"id": ID},
    {"id": {"ne": OTHER}},
    {"id": [ID, OTHER]},
    {"id": {"nin": [OTHER]}},
    {"id": {"exists": True}},
    # scene
    {"scene": "travel"},
    {"scene": ["travel", "food"]},
    {"scene": {"eq": "food", "ne": "work"}},
    {"scene": {"in": ["work", "food"]}},
    {"scene": {"nin": ["work"]}},
    {"scene": {"contains_any": ["work", "food"]}},
    {"scene": {"contains_all": ["food"]}},
    {"scene": {"exists": True}},
    # metadata
    {"metadata.lang": "zh"},
    {"metadata.lang": {"ne": "en"}},
    {"metadata.lang": ["zh", "en"]},
    {"metadata.lang": {"nin": ["en", None]}},
    {"metadata.lang": {"gt": "en", "lte": "zh"}},
    {"metadata.n": 3.0},
    {"metadata.n": {"ne": "3"}},
    {"metadata.n": {"gte": 3, "lt": 3.5}},
    {"metadata.yes": True},
    {"metadata.yes": {"ne": 1}},
    {"metadata.none": None},
    {"metadata.none": {"exists": False}},
    {"metadata.absent": None},
    {"metadata.absent.deeper": {"ne": 1}},
    {"metadata.lang.deeper": None},
    {"metadata.tags.0": None},
    {"metadata.tags": {"contains_any": ["b", 1.0]}},
    {"metadata.tags": {"contains_all": ["a", None, {"k": [1.0]}]}},
    {"metadata.tags": {"eq": ["a", 1, None, {"k": [1]}]}},
    {"metadata.tags": {"exists": True}},
    {"metadata.empty": {"exists": True}},
    {"metadata.deep.er.x": "退"},
    {"metadata.deep.er": {"eq": {"x": "退"}}},
    {r"metadata.deep.a\.b": 1},
    {r"metadata.deep.back\\slash": 2},
    # nesting
    {"user_id": "u1", "session_id": "s1"},
    {"OR": [{"user_id": "u2"}, {"priority": {"gt": 3}}]},
    {"AND": [{"priority": {"gt": 3}}, {"priority": {"lt": 5}}]},
    {"NOT": {"OR": [{"user_id": "u2"}, {"AND": [{"user_id": "u1"}, {"scene": "work"}]}]}},
    {"user_id": "u1", "OR": [{"metadata.lang": "en"}, {"NOT": {"scene": ["travel", "work"]}}]},
]
FAILS: list[dict[str, Any]] = [
    {"actor": "ana"},
    {"actor": {"gt": "Ana"}},
    {"actor": {"lt": "Ana"}},
    {"actor": {"nin": ["Ana"]}},
    {"agent_id": "g"},
    {"agent_id": {"ne": None}},
    {"agent_id": {"gt": "a"}},
    {"agent_id": {"lt": "a"}},
    {"agent_id": {"nin": [None]}},
    {"priority": {"in": [1, 2]}},
    {"priority": {"gt": 4}},
    {"pinned": False},
    {"pinned": None},
    {"occurred_at": {"gt": "2026-05-08T13:56:00.5Z"}},
    {"expires_at": {"gt": 0}},
    {"expires_at": {"lte": "9999-01-01T00:00:00Z"}},
    {"id": OTHER},
    {"scene": ["travel", "work"]},
    {"scene": {"contains_any": ["work"]}},
    {"scene": {"nin": ["food"]}},
    {"scene": None},
    {"metadata.lang": {"gt": 1}},
    {"metadata.n": "3"},
    {"metadata.n": True},
    {"metadata.yes": 1},
    {"metadata.n": {"gt": "2"}},
    {"metadata.none": {"exists": True}},
    {"metadata.absent": {"gt": 0}},
    {"metadata.lang": {"contains_any": ["zh"]}},
    {"metadata.tags": {"contains_all": ["a", True]}},
    {"metadata.empty": {"contains_any": [None]}},
    {"metadata.tags": {"eq": ["a", 1]}},
    {"metadata.deep.a.b": 1},
    {"NOT": {"user_id": "u1"}},
    {"user_id": "u1", "session_id": "s2"},
    {"OR": [{"user_id": "u2"}, {"NOT": {"pinned": True}}]},
    {"AND": [{"user_id": "u1"}, {"NOT": {"scene": "food"}}]},
]


@pytest.mark.parametrize("raw", HOLDS, ids=str)
def test_holds(raw: dict[str, Any]) -> None:
    assert matches(parse_filter(raw), MEMORY)


@pytest.mark.parametrize("raw", FAILS, ids=str)
def test_does_not_hold(raw: dict[str, Any]) -> None:
    assert not matches(parse_filter(raw), MEMORY)


@pytest.mark.parametrize("raw", [*HOLDS[1:], *FAILS], ids=str)
def test_not_is_the_opposite_whatever_is_missing(raw: dict[str, Any]) -> None:
    assert matches(parse_filter({"NOT": raw}), MEMORY) is not matches(parse_filter(raw), MEMORY)

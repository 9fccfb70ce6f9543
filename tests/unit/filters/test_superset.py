"""What of a filter the index is asked."""

from typing import Any

import pytest

from memplane_core.domain.filters import index_superset, parse_filter, seen_by_index
from memplane_core.domain.index import IndexFilter

AT = 1778248560


@pytest.mark.parametrize(
    ("raw", "asked", "seen"),
    [
        ({}, {}, True),
        ({"user_id": "a"}, {"user_id": ("a",)}, True),
        ({"user_id": None}, {"user_id": ("",)}, True),
        ({"user_id": ["b", "a", None]}, {"user_id": ("", "a", "b")}, True),
        ({"user_id": "a", "memory_type": "x"}, {"user_id": ("a",), "memory_type": ("x",)}, True),
        ({"AND": [{"agent_id": "g"}, {"session_id": "s"}]}, {"agent_id": ("g",), "session_id": ("s",)}, True),
        ({"AND": [{"user_id": ["a", "b"]}, {"user_id": ["b", "c"]}]}, {"user_id": ("b",)}, True),
        ({"AND": [{"user_id": "a"}, {"user_id": "b"}]}, {"user_id": ()}, True),
        ({"OR": [{"user_id": "a"}, {"user_id": "b"}]}, {"user_id": ("a", "b")}, True),
        ({"OR": [{"user_id": "a"}, {"agent_id": "b"}]}, {}, False),
        ({"OR": [{"user_id": "a", "scene": "x"}, {"user_id": "b"}]}, {"user_id": ("a", "b")}, False),
        ({"NOT": {"user_id": "a"}}, {}, False),
        ({"user_id": {"ne": None}}, {}, False),
        ({"user_id": {"gt": "a"}}, {}, False),
        ({"user_id": "a", "priority": {"gt": 3}}, {"user_id": ("a",)}, False),
        ({"scene": "x"}, {}, False),
        ({"metadata.user_id": "a"}, {}, False),
        ({"expires_at": {"gt": AT}}, {}, False),
        ({"occurred_at": {"gte": AT}}, {"occurred_from": AT}, True),
        ({"occurred_at": {"lt": AT}}, {"occurred_to": AT - 1}, True),
        ({"occurred_at": {"gte": AT, "lt": AT + 60}}, {"occurred_from": AT, "occurred_to": AT + 59}, True),
        ({"occurred_at": {"gt": AT}}, {"occurred_from": AT}, False),
        ({"occurred_at": {"lte": AT}}, {"occurred_to": AT}, False),
        ({"occurred_at": {"gte": AT + 0.5}}, {"occurred_from": AT}, False),
        ({"occurred_at": {"lt": AT + 0.5}}, {"occurred_to": AT}, False),
        ({"occurred_at": AT}, {"occurred_from": AT, "occurred_to": AT}, False),
        ({"occurred_at": [AT, AT + 9.5]}, {"occurred_from": AT, "occurred_to": AT + 9}, False),
        ({"occurred_at": {"lt": -0.5}}, {"occurred_to": -1}, False),
        ({"occurred_at": {"lte": "9999-12-31T23:59:59.999999Z"}}, {"occurred_to": 253402300799}, False),
        (
            {"OR": [{"occurred_at": {"gte": AT, "lt": AT + 5}}, {"occurred_at": {"gt": AT + 9}}]},
            {"occurred_from": AT},
            False,
        ),
    ],
    ids=str,
)
def test_is_never_narrower_and_says_when_it_is_the_whole(raw: Any, asked: dict[str, Any], *, seen: bool) -> None:
    where = parse_filter(raw)
    assert index_superset(where, alive_at=7) == IndexFilter(alive_at=7, **asked)
    assert seen_by_index(where) is seen

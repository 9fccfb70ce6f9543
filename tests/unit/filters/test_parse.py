"""What the grammar takes, what it means, and how a fault is named."""

from typing import Any

import pytest

from memplane_core.domain.errors import InvalidRequest
from memplane_core.domain.filters import EVERYTHING, MAX_CONDITIONS, MAX_DEPTH, MAX_LIST, fingerprint, parse_filter

INJECTIONS = ['") or true or ("', "x' or '1' == '1", '"', "'", "\\", "a\nb", "👩‍👧", "$1", "; DROP TABLE memory"]


def nested(depth: int) -> dict[str, Any]:
    """A filter of so many objects inside each other."""
    where: dict[str, Any] = {"user_id": "a"}
    for _ in range(depth - 1):
        where = {"NOT": where}
    return where


class TestMeaning:
    @pytest.mark.parametrize(
        ("short", "long"),
        [
            ({"user_id": "a"}, {"user_id": {"eq": "a"}}),
            ({"user_id": ["a", "b"]}, {"user_id": {"in": ["a", "b"]}}),
            ({"user_id": ["a"]}, {"user_id": "a"}),
            ({"scene": ["a", "b"]}, {"scene": {"contains_all": ["a", "b"]}}),
            ({"scene": "a"}, {"scene": {"contains_any": ["a"]}}),
            ({"scene": {"in": ["a", "b"]}}, {"scene": {"contains_any": ["a", "b"]}}),
            ({"metadata.a": ["x", 1]}, {"metadata.a": {"in": ["x", 1]}}),
            ({"user_id": None}, {"user_id": {"exists": False}}),
            ({"user_id": {"ne": None}}, {"NOT": {"user_id": {"exists": False}}}),
            ({"user_id": {"ne": "a"}}, {"NOT": {"user_id": "a"}}),
            ({"user_id": {"nin": ["a", "b"]}}, {"NOT": {"user_id": ["a", "b"]}}),
            ({"user_id": {"in": ["a", None]}}, {"OR": [{"user_id": "a"}, {"user_id": None}]}),
            ({"priority": {"gt": 2, "lt": 5}}, {"AND": [{"priority": {"gt": 2}}, {"priority": {"lt": 5}}]}),
            ({"priority": 3}, {"priority": 3.0}),
            ({"occurred_at": 0}, {"occurred_at": "1970-01-01T01:00:00+01:00"}),
            ({"occurred_at": "1970-01-01T00:00:00"}, {"occurred_at": 0.0}),
            ({"AND": [{"user_id": "a"}]}, {"AND": [{"AND": [{"user_id": "a"}]}]}),
        ],
    )
    def test_of_the_short_form_is_that_of_the_long_one(self, short: dict[str, Any], long: dict[str, Any]) -> None:
        assert parse_filter(short) == parse_filter(long)

    def test_of_nothing_is_everything(self) -> None:
        assert parse_filter({}) == EVERYTHING

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"metadata.a": 1}, {"metadata.a": True}),
            ({"metadata.a": 1}, {"metadata.a": "1"}),
            ({"metadata.a.b": 1}, {r"metadata.a\.b": 1}),
            ({"user_id": "a"}, {"agent_id": "a"}),
            ({"priority": {"gt": 3}}, {"priority": {"gte": 3}}),
            ({"OR": [{"user_id": "a"}, {"user_id": "b"}]}, {"AND": [{"user_id": "a"}, {"user_id": "b"}]}),
            ({}, {"user_id": "a"}),
        ],
    )
    def test_has_a_fingerprint_of_its_own(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        assert fingerprint(parse_filter(one)) != fingerprint(parse_filter(other))
        assert fingerprint(parse_filter(one)) == fingerprint(parse_filter(dict(one)))
        assert len(fingerprint(parse_filter(one))) == 32


class TestFaults:
    @pytest.mark.parametrize(
        ("raw", "pointer"),
        [
            ([], ""),
            (None, ""),
            ({"nonsense": 1}, "/nonsense"),
            ({"content": "a"}, "/content"),
            ({"and": []}, "/and"),
            ({"metadata": {"a": 1}}, "/metadata"),
            ({"metadata.": 1}, "/metadata."),
            ({"metadata.a..b": 1}, "/metadata.a..b"),
            ({r"metadata.a\b": 1}, r"/metadata.a\b"),
            ({"metadata." + ".".join("a" * 65): 1}, "/metadata." + ".".join("a" * 65)),
            ({"a/b~c": 1}, "/a~1b~0c"),
            ({"OR": []}, "/OR"),
            ({"AND": []}, "/AND"),
            ({"AND": {"user_id": "a"}}, "/AND"),
            ({"NOT": {}}, "/NOT"),
            ({"NOT": [{"user_id": "a"}]}, "/NOT"),
            ({"OR": [{"user_id": "a"}, {}]}, "/OR/1"),
            ({"OR": [{"user_id": "a"}, {"priority": {"gt": "3"}}]}, "/OR/1/priority/gt"),
            ({"user_id": {}}, "/user_id"),
            ({"user_id": {"like": "a"}}, "/user_id/like"),
            ({"user_id": {"contains_any": ["a"]}}, "/user_id/contains_any"),
            ({"scene": {"gt": "a"}}, "/scene/gt"),
            ({"pinned": {"gt": False}}, "/pinned/gt"),
            ({"id": {"lt": "a"}}, "/id/lt"),
            ({"user_id": 1}, "/user_id"),
            ({"user_id": ""}, "/user_id"),
            ({"user_id": []}, "/user_id"),
            ({"user_id": ["a", 1]}, "/user_id/1"),
            ({"user_id": {"in": "a"}}, "/user_id/in"),
            ({"user_id": {"in": []}}, "/user_id/in"),
            ({"user_id": {"gt": None}}, "/user_id/gt"),
            ({"user_id": {"exists": 1}}, "/user_id/exists"),
            ({"user_id": "é" * 129}, "/user_id"),
            ({"source": "x" * 129}, "/source"),
            ({"user_id": "a\0"}, "/user_id"),
            ({"user_id": "\ud800"}, "/user_id"),
            ({"scene": ["a", None]}, "/scene/1"),
            ({"priority": True}, "/priority"),
            ({"priority": "3"}, "/priority"),
            ({"priority": 10**400}, "/priority"),
            ({"priority": float("nan")}, "/priority"),
            ({"pinned": 1}, "/pinned"),
            ({"occurred_at": True}, "/occurred_at"),
            ({"occurred_at": "yesterday"}, "/occurred_at"),
            ({"occurred_at": "2026-05-08"}, "/occurred_at"),
            ({"occurred_at": 1e18}, "/occurred_at"),
            ({"expires_at": {"gt": "\ud800"}}, "/expires_at/gt"),
            ({"id": "1"}, "/id"),
            ({"id": "\ud800"}, "/id"),
            ({"metadata.a": {"gt": True}}, "/metadata.a/gt"),
            ({"metadata.a": {"gt": [1]}}, "/metadata.a/gt"),
            ({"metadata.a": {"b": 1}}, "/metadata.a/b"),
            ({"metadata.a": {"eq": {"b": "\0"}}}, "/metadata.a/eq"),
            ({"metadata.a": {"eq": {"\0": 1}}}, "/metadata.a/eq"),
            ({"metadata.a": ["x", ["\ud800"]]}, "/metadata.a/1"),
            ({"metadata.a": 10**400}, "/metadata.a"),
            ({"metadata.a": {"eq": float("inf")}}, "/metadata.a/eq"),
            ({"metadata.a": {"eq": {"b": {1, 2}}}}, "/metadata.a/eq"),
            ({"metadata.a": {"eq": ["x" * 16_384]}}, "/metadata.a/eq"),
            ({"user_id": ["a"] * (MAX_LIST + 1)}, "/user_id"),
            ({"AND": [{"user_id": "a"}] * (MAX_CONDITIONS + 1)}, f"/AND/{MAX_CONDITIONS}/user_id"),
            (nested(MAX_DEPTH + 1), "/NOT" * MAX_DEPTH),
        ],
    )
    def test_are_named_by_a_pointer(self, raw: object, pointer: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_filter(raw)
        [fault] = caught.value.faults
        assert fault.pointer == f"/filters{pointer}"
        assert fault.detail

    @pytest.mark.parametrize("key", ["a\0", "\ud800", "metadata.\0", "metadata.\udfff"])
    def test_of_keys_that_are_no_text_can_be_sent(self, key: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_filter({key: 1})
        assert caught.value.faults[0].pointer.encode().startswith(b"/filters/")

    def test_of_deep_json_are_found_before_python_is_too_deep(self) -> None:
        deep: list[Any] = []
        for _ in range(500):
            deep = [deep]
        with pytest.raises(InvalidRequest, match="at most 64 deep"):
            parse_filter({"metadata.a": {"eq": deep}})

    def test_name_what_would_be_right(self) -> None:
        with pytest.raises(InvalidRequest, match=r"known are .*user_id.*metadata\.<path>, AND, OR and NOT"):
            parse_filter({"userid": "a"})
        with pytest.raises(InvalidRequest, match=r"known are eq, ne, in, nin, exists"):
            parse_filter({"pinned": {"gt": True}})


class TestLimits:
    def test_what_is_just_within_them_is_taken(self) -> None:
        parse_filter(nested(MAX_DEPTH))
        parse_filter({"user_id": [f"u{n}" for n in range(MAX_LIST)]})
        parse_filter({"AND": [{"user_id": "a"}] * MAX_CONDITIONS})
        parse_filter({"user_id": "é" * 128, "metadata." + ".".join("a" * 64): 1})

    @pytest.mark.parametrize("text", INJECTIONS)
    def test_odd_text_is_a_value_and_a_key_of_metadata_like_any_other(self, text: str) -> None:
        key = "metadata." + text.replace("\\", "\\\\").replace(".", "\\.")
        parse_filter({"user_id": text, "scene": [text], key: text})
        with pytest.raises(InvalidRequest):
            parse_filter({text: "a"})

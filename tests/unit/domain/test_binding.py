"""What a bound key may ask for, and what is made of it."""

from typing import Any
from uuid import uuid4

import pytest

from memplane_core.domain.binding import check_fields, narrowed, visible
from memplane_core.domain.errors import Forbidden, InvalidRequest
from memplane_core.domain.filters import EVERYTHING, index_superset, parse_filter
from memplane_core.domain.tenancy import SCOPES, Principal, TenantId

ANYONE = Principal(tenant=TenantId(uuid4()), scopes=SCOPES, key_id="k", request_id="r")
ANA = Principal(tenant=TenantId(uuid4()), scopes=SCOPES, key_id="k", request_id="r", bind_user_id="ana")
ANAS_AGENT = Principal(
    tenant=TenantId(uuid4()), scopes=SCOPES, key_id="k", request_id="r", bind_user_id="ana", bind_agent_id="a"
)


class TestFilters:
    def test_of_a_key_that_is_not_bound_stay_as_they_are(self) -> None:
        assert narrowed(ANYONE, EVERYTHING) is EVERYTHING
        assert visible(ANYONE) is EVERYTHING

    @pytest.mark.parametrize(
        "raw",
        [
            {},
            {"user_id": "ana"},
            {"user_id": {"in": ["bob", "ana"]}},
            {"OR": [{"user_id": "bob"}, {"priority": 3}]},
            {"NOT": {"user_id": "ana"}},
            {"user_id": {"nin": ["ana"]}},
            {"scene": "x"},
        ],
    )
    def test_of_a_bound_key_ask_for_its_own_memories_alone(self, raw: dict[str, Any]) -> None:
        where = narrowed(ANAS_AGENT, parse_filter(raw))
        superset = index_superset(where, alive_at=0)
        assert (superset.user_id, superset.agent_id) == (("ana",), ("a",))

    @pytest.mark.parametrize(
        ("raw", "pointer"),
        [
            ({"user_id": "bob"}, "/filters/user_id"),
            ({"user_id": ["bob", "eve"]}, "/filters/user_id"),
            ({"user_id": None}, "/filters/user_id"),
            ({"AND": [{"user_id": "ana"}, {"user_id": "bob"}]}, "/filters/user_id"),
            ({"OR": [{"user_id": "bob"}, {"user_id": "eve"}]}, "/filters/user_id"),
            ({"user_id": "ana", "agent_id": "b"}, "/filters/agent_id"),
        ],
    )
    def test_for_others_are_refused_by_field(self, raw: dict[str, Any], pointer: str) -> None:
        with pytest.raises(Forbidden) as caught:
            narrowed(ANAS_AGENT, parse_filter(raw))
        assert [fault.pointer for fault in caught.value.faults] == [pointer]

    @pytest.mark.parametrize(
        ("raw", "named"),
        [
            ({}, False),
            ({"agent_id": "a"}, False),
            ({"user_id": None}, False),
            ({"user_id": {"ne": "ana"}}, False),
            ({"OR": [{"user_id": "ana"}, {"user_id": "bob"}]}, False),
            ({"user_id": "ana"}, True),
            ({"user_id": ["ana", "bob"], "scene": "x"}, True),
            ({"AND": [{"user_id": "ana"}, {"scene": "x"}]}, True),
        ],
    )
    def test_have_to_name_a_user_where_the_policy_asks_for_it(self, raw: dict[str, Any], *, named: bool) -> None:
        where = parse_filter(raw)
        if named:
            assert narrowed(ANYONE, where, require_user=True) == where
            return
        with pytest.raises(InvalidRequest) as caught:
            narrowed(ANYONE, where, require_user=True)
        assert [fault.pointer for fault in caught.value.faults] == ["/filters/user_id"]

    def test_of_a_key_that_is_bound_to_a_user_need_not(self) -> None:
        narrowed(ANA, EVERYTHING, require_user=True)


class TestFields:
    def test_that_are_the_keys_own_or_not_named_are_fine(self) -> None:
        check_fields(ANAS_AGENT, {})
        check_fields(ANAS_AGENT, {"user_id": "ana", "agent_id": "a"})
        check_fields(ANA, {"agent_id": "any"})
        check_fields(ANYONE, {"user_id": "any", "agent_id": None})

    @pytest.mark.parametrize("value", ["bob", None, "Ana", "ana "])
    def test_of_others_are_refused_by_name(self, value: str | None) -> None:
        with pytest.raises(Forbidden) as caught:
            check_fields(ANA, {"user_id": value}, pointer="/memories/3/")
        assert [fault.pointer for fault in caught.value.faults] == ["/memories/3/user_id"]

    def test_a_user_cannot_be_taken_away_where_the_policy_asks_for_one(self) -> None:
        check_fields(ANYONE, {}, require_user=True)
        with pytest.raises(InvalidRequest):
            check_fields(ANYONE, {"user_id": None}, require_user=True)

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.errors import InvalidRequest
from memplane_core.domain.memory import dedup_key, head_of, to_utc


def _key(difference: dict[str, Any]) -> bytes:
    return dedup_key(**cast("Any", BASE | difference))


BASE: dict[str, Any] = {
    "content": "c",
    "actor": None,
    "memory_type": "experience",
    "user_id": None,
    "agent_id": None,
    "session_id": None,
    "occurred_at": None,
}


def test_the_head_names_date_time_and_actor_in_utc() -> None:
    at = datetime(2023, 5, 8, 21, 6, tzinfo=timezone(timedelta(hours=8)))
    assert head_of("Caroline", at) == "[8 May 2023, 13:06] Caroline: "
    assert head_of(None, at) == "[8 May 2023, 13:06] "


@pytest.mark.parametrize(
    "difference",
    [
        {"content": "d"},
        {"actor": ""},
        {"user_id": "c"},
        {"agent_id": "c"},
        {"session_id": "c"},
        {"memory_type": "experience "},
        {"occurred_at": datetime(2023, 1, 1, tzinfo=UTC)},
    ],
)
def test_each_part_of_the_identity_counts(difference: dict[str, Any]) -> None:
    assert _key(difference) != _key({})


def test_the_same_moment_in_another_zone_is_the_same() -> None:
    utc = datetime(2023, 1, 1, 12, tzinfo=UTC)
    east = utc.astimezone(timezone(timedelta(hours=8)))
    assert _key({"occurred_at": utc}) == _key({"occurred_at": east})


@given(st.tuples(*[st.none() | st.text(max_size=4)] * 3), st.tuples(*[st.none() | st.text(max_size=4)] * 3))
def test_parts_never_run_into_each_other(one: tuple[str | None, ...], two: tuple[str | None, ...]) -> None:
    keys = [_key(dict(zip(("user_id", "agent_id", "session_id"), parts, strict=True))) for parts in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


@pytest.mark.parametrize(
    "moment", [1e18, -1e18, float(2**63), datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))]
)
def test_times_out_of_range_name_their_field(moment: datetime | float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        to_utc(moment, pointer="/occurred_at")
    assert caught.value.faults[0].pointer == "/occurred_at"

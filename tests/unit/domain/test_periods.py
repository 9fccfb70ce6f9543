from datetime import UTC, datetime

import pytest

from memplane_core.domain.periods import Period, period_of


@pytest.mark.parametrize(
    ("text", "year", "month", "day"),
    [
        ("What did she do on 8 May, 2023?", 2023, 5, 8),
        ("What did she do on May 8th 2023?", 2023, 5, 8),
        ("on the 3rd of june", None, 6, 3),
        ("in March 2022", 2022, 3, None),
        ("Where was he in August?", None, 8, None),
        ("in may 2023", 2023, 5, None),
        ("the race of 2021", 2021, None, None),
        ("logs of 2023-05-08", 2023, 5, 8),
        ("2023/11 report", 2023, 11, None),
        ("2023年5月8日她做了什么", 2023, 5, 8),
        ("5月8号去哪儿了", None, 5, 8),
        ("去年12月的旅行", None, 12, None),
        ("２０２３年", None, None, None),
        ("2024 年的计划", 2024, None, None),
    ],
)
def test_a_named_time_is_read(text: str, year: int | None, month: int | None, day: int | None) -> None:
    found = period_of(text)
    named = None if (year, month, day) == (None, None, None) else Period(year=year, month=month, day=day)
    assert found == named


@pytest.mark.parametrize(
    "text", ["", "What may she like?", "the march through the town", "order 120234", "room 2023b", "at 10:30", "5个月"]
)
def test_what_names_no_time_is_left_alone(text: str) -> None:
    assert period_of(text) is None


@pytest.mark.parametrize(
    ("period", "days"),
    [
        (Period(year=2023, month=5, day=8), 0),
        (Period(year=2023, month=5, day=10), 1),
        (Period(year=2023, month=5, day=1), 7),
        (Period(year=2023, month=5, day=None), 0),
        (Period(year=2023, month=4, day=None), 8),
        (Period(year=None, month=5, day=9), 0),
        (Period(year=None, month=12, day=31), 128),
        (Period(year=2022, month=None, day=None), 128),
        (Period(year=2023, month=2, day=31), 69),
    ],
)
def test_days_are_counted_from_the_nearer_end(period: Period, days: int) -> None:
    assert period.days_from(datetime(2023, 5, 8, 13, 30, tzinfo=UTC)) == days


@pytest.mark.parametrize("text", ["5 Aprıl", "5 aprİl", "ın 2023"])
def test_letters_that_only_look_alike_name_no_month(text: str) -> None:
    assert period_of(text) is None or period_of(text) == Period(year=2023, month=None, day=None)

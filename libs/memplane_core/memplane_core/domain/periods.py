"""The day, month or year that a text names, in English, in Chinese and as ISO 8601."""

import calendar
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

_MONTHS: Final = {name.casefold(): n for n, name in enumerate(calendar.month_name) if name}
_MONTH: Final = "|".join(_MONTHS)
_DAY: Final = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)"
_FORMS: Final = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?<!\d){_YEAR}[-/.](?P<number>0?[1-9]|1[0-2])(?:[-/.]{_DAY})?(?!\d)",
        rf"(?:{_YEAR}\s*年\s*)?(?<!\d)(?P<number>0?[1-9]|1[0-2])\s*月份?(?:\s*{_DAY}\s*[日号])?",
        rf"\b{_DAY}\s+(?:of\s+)?(?P<month>{_MONTH})\b(?:,?\s+{_YEAR}\b)?",
        rf"\b(?P<month>{_MONTH})\s+{_DAY}\b(?:,?\s+{_YEAR}\b)?",
        rf"\b(?P<month>{_MONTH})\b,?(?:\s+(?:of\s+)?{_YEAR}\b)?",
        rf"(?<![\d-]){_YEAR}(?:\s*年|\b)(?!\d)",
    )
)
_WORDS: Final = frozenset({"may", "march"})
"""Months that are also words: taken for months where they are written large or stand by a number."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A named time. A part that was not named is None: `5 May` is that day of every year."""

    year: int | None
    month: int | None
    day: int | None

    def days_from(self, moment: datetime) -> int:
        """Whole days between a moment and the period, 0 inside of it; in UTC."""
        at = moment.astimezone(UTC)
        years = (self.year,) if self.year is not None else (at.year - 1, at.year, at.year + 1)
        return min(self._days(at, year) for year in years)

    def _days(self, at: datetime, year: int) -> int:
        if not 1 < year < 9999:
            return 366
        first = datetime(year, self.month or 1, 1, tzinfo=UTC)
        last_month = self.month or 12
        last = datetime(year, last_month, calendar.monthrange(year, last_month)[1], tzinfo=UTC)
        if self.month is not None and self.day is not None:
            first = last = min(first + timedelta(days=self.day - 1), last)
        return max(0, (first - at).days, (at - last).days)


def period_of(text: str) -> Period | None:
    """The first time that a text names, the most exact form of it; None where it names none."""
    for form in _FORMS:
        for match in form.finditer(text):
            parts = match.groupdict()
            word = parts.get("month")
            if word in _WORDS and not (parts.get("day") or parts.get("year")):
                continue
            if word and word.casefold() not in _MONTHS:  # `ı` is an `i` to a pattern without case, and to nothing else
                continue
            month = _MONTHS[word.casefold()] if word else _number(parts.get("number"))
            return Period(year=_number(parts.get("year")), month=month, day=_number(parts.get("day")))
    return None


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)

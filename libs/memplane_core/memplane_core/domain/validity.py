"""When what a memory says is so: from `valid_from` on and before `valid_to`; where a bound is missing, without end."""

from datetime import datetime
from typing import Final, Literal

import msgspec

from memplane_core.domain.errors import invalid
from memplane_core.domain.memory import to_utc

ValidAt = datetime | Literal["now", "any"]
"""A moment at which memories must hold: the database's `now`, one that was named, or `any`, which asks for none."""

_WANTED: Final = 'must be a time, RFC 3339 or epoch seconds, or "any"'


def valid_at_of(given: str | float | None, *, now: datetime | None = None, pointer: str) -> ValidAt:
    """The moment that a request names; else `now`, where it names its own clock, else the database's.

    Raises:
        InvalidRequest: It is no moment.
    """
    if given is None:
        return "now" if now is None else now
    if given == "any":
        return "any"
    if isinstance(given, float | int):
        return to_utc(given, pointer=pointer)
    try:
        return to_utc(msgspec.convert(given, datetime), pointer=pointer)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise invalid(pointer, _WANTED) from None


def check_interval(valid_from: datetime | None, valid_to: datetime | None, *, pointer: str = "") -> None:
    """Raises InvalidRequest where nothing could hold in between."""
    if valid_from is not None and valid_to is not None and valid_to <= valid_from:
        raise invalid(f"{pointer}/valid_to", "must be after valid_from")

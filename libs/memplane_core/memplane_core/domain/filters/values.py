"""Values of a filter, checked against what their field can hold."""

import math
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from memplane_core.domain.errors import invalid
from memplane_core.domain.filters.tree import Field, Json, Value
from memplane_core.domain.memory import METADATA_BYTES, METADATA_DEPTH, to_utc

_WANTED: Final = {
    "text": "must be a string",
    "tags": "must be a string",
    "number": "must be a number",
    "flag": "must be true or false",
    "time": "must be a time: RFC 3339 or epoch seconds",
    "id": "must be the id of a memory, a UUID",
}


def value_of(field: Field, raw: Any, pointer: str) -> Value:
    """`raw` as a value of the field's kind. Raises InvalidRequest where it is none."""
    match field.kind, raw:
        case (("text" | "tags"), str()):
            return _label(raw, pointer, field.limit)
        case "number", (int() | float()) if not isinstance(raw, bool):
            return float(_number(raw, pointer))
        case "flag", bool():
            return raw
        case "time", (str() | int() | float() | datetime()) if not isinstance(raw, bool):
            return _time(raw, pointer)
        case "id", str():
            return _id(raw, pointer)
        case "json", _:
            return _json(raw, pointer)
        case _:
            raise invalid(pointer, _WANTED[field.kind])


def ordered_value_of(field: Field, raw: Any, pointer: str) -> Value:
    """The same, for an operator that needs an order."""
    if field.kind == "json" and (isinstance(raw, bool) or not isinstance(raw, str | int | float)):
        raise invalid(pointer, "must be a number or a string, which alone have an order")
    return value_of(field, raw, pointer)


def checked_text(text: str, pointer: str, limit: int) -> str:
    """The text itself. Raises InvalidRequest where no store could hold it."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise invalid(pointer, "holds half of a surrogate pair, which is no text") from None
    if "\0" in text:
        raise invalid(pointer, "must not hold a NUL character")
    if size > limit:
        raise invalid(pointer, f"must be at most {limit} bytes of UTF-8, not {size}")
    return text


def _label(text: str, pointer: str, limit: int) -> str:
    if not text:
        raise invalid(pointer, "must not be empty; null asks for memories without a value")
    return checked_text(text, pointer, limit)


def _number(number: float, pointer: str) -> float:
    try:
        finite = math.isfinite(number)
    except OverflowError:  # an integer beyond all floats
        finite = False
    if not finite:
        raise invalid(pointer, "must be a number that fits a float of 64 bits")
    return number


def _time(raw: str | float | datetime, pointer: str) -> datetime:
    try:
        moment = msgspec.convert(raw, datetime) if isinstance(raw, str) else raw
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise invalid(pointer, _WANTED["time"]) from None
    return to_utc(moment, pointer=pointer)


def _id(text: str, pointer: str) -> UUID:
    try:
        return msgspec.convert(text, UUID)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise invalid(pointer, _WANTED["id"]) from None


def _json(raw: Any, pointer: str) -> Json:
    _check_json(raw, pointer, depth=0)
    value = Json.of(raw)
    if len(value.raw) > METADATA_BYTES:
        raise invalid(pointer, f"must be at most {METADATA_BYTES} bytes of JSON")
    return value


def _check_json(raw: Any, pointer: str, *, depth: int) -> None:
    """Faults are reported at the value as a whole: it is small, and its keys may be no text."""
    match raw:
        case None | bool():
            pass
        case str():
            checked_text(raw, pointer, METADATA_BYTES)
        case int() | float():
            _number(raw, pointer)
        case list() | dict() if depth == METADATA_DEPTH:
            raise invalid(pointer, f"must nest objects and lists at most {METADATA_DEPTH} deep")
        case list():
            for inner in cast("list[Any]", raw):
                _check_json(inner, pointer, depth=depth + 1)
        case dict():
            for key, inner in cast("dict[str, Any]", raw).items():
                checked_text(key, pointer, METADATA_BYTES)
                _check_json(inner, pointer, depth=depth + 1)
        case _:
            raise invalid(pointer, "must be a JSON value")

"""JSON that Postgres gives back as it was given."""

import re
from typing import Any, Final, cast

import msgspec

_EXPONENT: Final = re.compile(rb"[0-9]e[0-9]")


def exact_json(value: object) -> bytes:
    """`value` as JSON whose large floats are still floats after `jsonb`, which keeps numbers without their exponent."""
    raw = msgspec.json.encode(value)
    return raw if _EXPONENT.search(raw) is None else msgspec.json.encode(_spelled_out(value))


def _spelled_out(value: Any) -> Any:
    if isinstance(value, float) and abs(value) >= 1e16:
        return msgspec.Raw(f"{value:.1f}".encode())
    if isinstance(value, dict):
        return {key: _spelled_out(inner) for key, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_spelled_out(inner) for inner in cast("list[Any]", value)]
    return value

"""Reading a filter from JSON: every field, operator, value and limit is checked, and a fault names its place."""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from memplane_core.domain.errors import invalid
from memplane_core.domain.filters.tree import FIELDS, And, Condition, Field, Filter, Kind, Not, Op, Or, Value
from memplane_core.domain.filters.values import checked_text, ordered_value_of, value_of
from memplane_core.domain.memory import METADATA_BYTES, METADATA_DEPTH

MAX_DEPTH: Final = 16
"""Most objects inside each other, the outermost included."""

MAX_CONDITIONS: Final = 256
"""Most conditions in one filter; each operator of a field counts."""

MAX_LIST: Final = 1000
"""Most values in one list."""

_COMPARISONS: Final = ("gt", "gte", "lt", "lte")
_EQUALITY: Final = ("eq", "ne", "in", "nin")
_CONTAINS: Final = ("contains_any", "contains_all")
_OPERATORS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "text": (*_EQUALITY, *_COMPARISONS, "exists"),
    "number": (*_EQUALITY, *_COMPARISONS, "exists"),
    "time": (*_EQUALITY, *_COMPARISONS, "exists"),
    "flag": (*_EQUALITY, "exists"),
    "id": (*_EQUALITY, "exists"),
    "tags": (*_EQUALITY, *_CONTAINS, "exists"),
    "json": (*_EQUALITY, *_COMPARISONS, *_CONTAINS, "exists"),
}

_METADATA: Final = "metadata."
_STEP: Final = r"(?:[^.\\]|\\[.\\])+"
_PATH: Final = re.compile(rf"{_STEP}(?:\.{_STEP})*")
_KNOWN: Final = f"known are {', '.join(FIELDS)}, metadata.<path>, AND, OR and NOT"


def operators_of(kind: Kind) -> tuple[str, ...]:
    """What can be asked of a field of this kind."""
    return _OPERATORS[kind]


def parse_filter(raw: object, *, pointer: str = "/filters") -> Filter:
    """The filter that a JSON object says; `{}` is `EVERYTHING`.

    Args:
        raw: As it was decoded.
        pointer: Where it stood in the request's body; goes before the place of a fault.

    Raises:
        InvalidRequest: It says something that is not in the grammar, or too much.
    """
    return And(()) if raw == {} else _Reader().group(raw, pointer, depth=1)


class _Reader:
    """Counts the conditions of one filter while it reads them."""

    def __init__(self) -> None:
        self._conditions = 0

    def group(self, raw: object, pointer: str, *, depth: int) -> Filter:
        """An object whose members must all hold."""
        if not isinstance(raw, dict):
            raise invalid(pointer, "must be an object of conditions")
        if depth > MAX_DEPTH:
            raise invalid(pointer, f"must nest at most {MAX_DEPTH} deep")
        members = cast("dict[str, Any]", raw)
        if not members:
            raise invalid(pointer, "must not be empty; only the whole filter may be")
        parts: list[Filter] = []
        for key, value in members.items():
            at = f"{pointer}/{_escaped(key)}"
            match key:
                case "AND":
                    parts.append(_joined(And, self._groups(value, at, depth=depth)))
                case "OR":
                    parts.append(_joined(Or, self._groups(value, at, depth=depth)))
                case "NOT":
                    parts.append(Not(self.group(value, at, depth=depth + 1)))
                case _:
                    parts += self._field(_field(key, at), value, at)
        return _joined(And, tuple(parts))

    def _groups(self, raw: object, pointer: str, *, depth: int) -> tuple[Filter, ...]:
        groups = _list(raw, pointer, of="filters")
        return tuple(self.group(group, f"{pointer}/{n}", depth=depth + 1) for n, group in enumerate(groups))

    def _field(self, field: Field, raw: object, pointer: str) -> list[Filter]:
        """All that is asked of one field."""
        if isinstance(raw, dict):
            asked = cast("dict[str, Any]", raw)
            if not asked:
                raise invalid(pointer, f"must name an operator: {', '.join(_OPERATORS[field.kind])}")
            return [self._condition(field, op, value, f"{pointer}/{_escaped(op)}") for op, value in asked.items()]
        op = ("contains_all" if field.kind == "tags" else "in") if isinstance(raw, list) else "eq"
        return [self._condition(field, op, cast("object", raw), pointer)]

    def _condition(self, field: Field, op: str, raw: object, pointer: str) -> Filter:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise invalid(pointer, f"is one condition too many; a filter has at most {MAX_CONDITIONS}")
        if op not in _OPERATORS[field.kind]:
            known = ", ".join(_OPERATORS[field.kind])
            raise invalid(pointer, f"is not an operator for this field; known are {known}")
        match op:
            case "eq" | "ne":
                found = _one_of(field, [raw], [pointer])
            case "in" | "nin":
                values = _list(raw, pointer, of="values")
                found = _one_of(field, values, [f"{pointer}/{n}" for n in range(len(values))])
            case "exists":
                if not isinstance(raw, bool):
                    raise invalid(pointer, "must be true or false")
                found = Condition(field, "exists")
                return found if raw else Not(found)
            case "contains_any" | "contains_all":
                values = _list(raw, pointer, of="values")
                read = (value_of(field, value, f"{pointer}/{n}") for n, value in enumerate(values))
                return Condition(field, op, tuple(dict.fromkeys(read)))
            case _:
                return Condition(field, cast("Op", op), (ordered_value_of(field, raw, pointer),))
        return Not(found) if op in ("ne", "nin") else found


def _one_of(field: Field, raw: list[Any], pointers: list[str]) -> Filter:
    """Equal to one of these, where null is equal to what is missing."""
    values: dict[Value, None] = {}
    for value, pointer in zip(raw, pointers, strict=True):
        if value is not None:
            values[value_of(field, value, pointer)] = None
    parts: list[Filter] = []
    if values:
        parts.append(Condition(field, "contains_any" if field.kind == "tags" else "in", tuple(values)))
    if None in raw:
        parts.append(Not(Condition(field, "exists")))
    return _joined(Or, tuple(parts))


def _joined(by: type[And | Or], parts: tuple[Filter, ...]) -> Filter:
    return parts[0] if len(parts) == 1 else by(parts)


def _field(key: str, pointer: str) -> Field:
    """The field that a key names."""
    checked_text(key, pointer, METADATA_BYTES)
    if key in FIELDS:
        return FIELDS[key]
    if key == "metadata":
        raise invalid(pointer, "name what is in it, as in metadata.lang")
    if not key.startswith(_METADATA):
        raise invalid(pointer, f"is not a field to filter by; {_KNOWN}")
    path = key.removeprefix(_METADATA)
    if _PATH.fullmatch(path) is None:
        raise invalid(pointer, r"is not a path: keys stand between dots, and a dot or backslash of a key is \. or \\")
    steps = tuple(re.sub(r"\\(.)", r"\1", step) for step in re.findall(_STEP, path))
    if len(steps) > METADATA_DEPTH:
        raise invalid(pointer, f"leads through more than {METADATA_DEPTH} objects, which no metadata has")
    return Field("metadata", "json", METADATA_BYTES, steps)


def _list(raw: object, pointer: str, *, of: str) -> list[Any]:
    if not isinstance(raw, list):
        raise invalid(pointer, f"must be a list of {of}")
    found = cast("list[Any]", raw)
    if not 1 <= len(found) <= MAX_LIST:
        raise invalid(pointer, f"must be a list of 1 to {MAX_LIST} {of}, not {len(found)}")
    return found


def _escaped(key: str) -> str:
    """A key as a step of a pointer, which has to be text whatever the key is."""
    return key.encode(errors="replace").decode().replace("~", "~0").replace("/", "~1")

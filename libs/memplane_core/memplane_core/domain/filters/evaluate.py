"""A filter on a memory in hand."""

import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, cast

from memplane_core.domain.filters.tree import And, Condition, Field, Filter, Json, Not, Or
from memplane_core.domain.memory import Memory

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def matches(where: Filter, memory: Memory) -> bool:
    """Whether a memory passes; what Postgres says of it, without asking it."""
    match where:
        case And():
            return all(matches(part, memory) for part in where.parts)
        case Or():
            return any(matches(part, memory) for part in where.parts)
        case Not():
            return not matches(where.part, memory)
        case Condition():
            return _holds(where, _found(where.field, memory))


def _found(field: Field, memory: Memory) -> Any:
    """What the memory has there; None where it has nothing."""
    value: Any = getattr(memory, field.name)
    for step in field.path:
        value = cast("dict[str, Any]", value).get(step) if isinstance(value, dict) else None
    return value


def _holds(condition: Condition, found: Any) -> bool:
    if found is None:
        return False
    match condition.field.kind:
        case "tags":
            return _holds_tags(condition, set(cast("list[str]", found)))
        case "json":
            return _holds_json(condition, found)
        case _:
            if condition.op == "exists":
                return True
            if condition.op == "in":
                return found in condition.values
            return _COMPARE[condition.op](found, cast("Any", condition.values[0]))


def _holds_tags(condition: Condition, found: set[str]) -> bool:
    if condition.op == "exists":
        return bool(found)
    wanted = cast("set[str]", set(condition.values))
    return wanted <= found if condition.op == "contains_all" else not wanted.isdisjoint(found)


def _holds_json(condition: Condition, found: Any) -> bool:
    given = [value.value for value in condition.values if isinstance(value, Json)]
    match condition.op:
        case "exists":
            return True
        case "in":
            return _key(found) in {_key(value) for value in given}
        case "contains_any" | "contains_all":
            if not isinstance(found, list):
                return False
            held, wanted = {_key(value) for value in cast("list[Any]", found)}, {_key(value) for value in given}
            return wanted <= held if condition.op == "contains_all" else not wanted.isdisjoint(held)
        case _:
            return _type(found) == _type(given[0]) and _COMPARE[condition.op](found, given[0])


def _type(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case _:
            return type(value).__name__


def _key(value: Any) -> Hashable:
    """The same for values that are the same JSON: Python alone takes True for 1."""
    match value:
        case list():
            return ("list", *map(_key, cast("list[Any]", value)))
        case dict():
            return ("dict", frozenset((name, _key(inner)) for name, inner in cast("dict[str, Any]", value).items()))
        case _:
            return (_type(value), value)

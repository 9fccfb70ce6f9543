"""Filters as SQL. Whatever a caller said is bound, keys of metadata included; the statement's text is ours alone.

Nothing is unknown here either: a comparison with a missing value is null, which counts as false under AND and OR, and
`IS NOT TRUE` makes it so under a NOT.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

import asyncpg
import msgspec

from memplane_core.domain.errors import Unavailable
from memplane_core.domain.filters import And, Condition, Field, Filter, Json, Not, Or, Value, fields_of
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.session import Connection, Row

_METADATA_MS: Final = 5_000
_USAGE: Final = frozenset(("priority", "last_accessed_at", "access_count"))
_TYPES: Final = {"text": "text", "number": "float8", "flag": "boolean", "time": "timestamptz", "id": "uuid"}
_MAX_JOINS: Final = 3
"""Conditions on scenes that are joins; a planner is slow with many, and more of them narrow little."""

_MAX_JOINED: Final = 32
"""Tags of one such join: a planner without statistics may look each of them up for each memory."""

_SIGNS: Final = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def conditions(where: Filter, values: list[Any]) -> str:
    """The filter as " AND (...)" on `memory m` and, where `needs_usage`, `memory_usage u`; "" for everything.

    Args:
        where: The filter.
        values: Arguments of the statement, of which the first is the tenant. What the filter binds is appended.
    """
    return "" if where == And(()) else f" AND ({_Writer(values).sql(where, must_hold=True)})"


def needs_usage(where: Filter) -> bool:
    """Whether the conditions speak of `memory_usage u`."""
    return any(field.name in _USAGE for field in fields_of(where))


def needs_metadata(where: Filter) -> bool:
    """Whether rows have to be read one by one for their metadata, which no index knows."""
    return any(field.kind == "json" for field in fields_of(where))


async def fetch_matching(
    tenant: TenantId, connection: Connection, query: str, *, where: Filter, values: Sequence[object]
) -> list[Row]:
    """The rows of a statement that asks for what `where` matches; where that `needs_metadata`, within 5 seconds.

    Args:
        tenant: The statement's first argument.
        connection: A transaction of the tenant, which keeps the limit.
        query: The statement.
        where: What it asks for.
        values: Its other arguments.

    Raises:
        Unavailable: It took longer; the filter is too wide.
    """
    if not needs_metadata(where):
        return await connection.fetch(query, tenant, *values)
    await connection.execute("SELECT set_config('statement_timeout', $1, true)", str(_METADATA_MS))
    try:
        return await connection.fetch(query, tenant, *values)
    except asyncpg.QueryCanceledError as error:
        detail = "the filter on metadata takes too long; narrow it by an entity, a scene or a time"
        raise Unavailable(detail, retry_after=5) from error


class _Writer:
    """Writes one filter, binding its values as it goes."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._joins_left = _MAX_JOINS

    def sql(self, where: Filter, *, must_hold: bool) -> str:
        """The filter, or a part of it that `must_hold` for a row to be found."""
        match where:
            case And():
                return " AND ".join(f"({self.sql(part, must_hold=must_hold)})" for part in where.parts) or "true"
            case Or():
                return " OR ".join(f"({self.sql(part, must_hold=False)})" for part in where.parts)
            case Not():
                return f"({self.sql(where.part, must_hold=False)}) IS NOT TRUE"
            case Condition(field=field) if field.kind == "tags":
                return self._tags(where, must_hold=must_hold)
            case Condition(field=field) if field.kind == "json":
                return self._json(where)
            case Condition():
                return self._column(where)

    def _bind(self, value: object, type_: str) -> str:
        self._values.append(value)
        return f"${len(self._values)}::{type_}"

    def _column(self, condition: Condition) -> str:
        field, values = condition.field, condition.values
        column = f"{'u' if field.name in _USAGE else 'm'}.{field.name}"
        type_ = _TYPES[field.kind]
        match condition.op:
            case "exists":
                return f"{column} IS NOT NULL"
            case "in" if len(values) == 1:
                return f"{column} = {self._bind(values[0], type_)}"
            case "in":
                return f"{column} = ANY({self._bind(list(values), f'{type_}[]')})"
            case op:
                ordered = f'{column} COLLATE "C"' if field.kind == "text" else column
                return f"{ordered} {_SIGNS[op]} {self._bind(values[0], type_)}"

    def _tags(self, condition: Condition, *, must_hold: bool) -> str:
        if condition.op == "exists":
            return "cardinality(m.scene) > 0"
        values = cast("list[str]", list(condition.values))
        every = condition.op == "contains_all" and len(values) > 1
        single = every or len(values) == 1
        if not must_hold or self._joins_left == 0 or not (single or len(values) <= _MAX_JOINED):
            return self._tags_of_row(values, every=every)
        # Under row-level security no index of an array is used: what a row must have is found in the side table.
        self._joins_left -= 1
        tag = f"= {self._bind(values[0], 'text')}" if single else f"= ANY({self._bind(values, 'text[]')})"
        found = f"m.id IN (SELECT s.memory_id FROM memory_scene s WHERE s.tenant_id = $1 AND s.scene {tag})"
        return f"{found} AND {self._tags_of_row(values, every=True)}" if every else found

    def _tags_of_row(self, values: list[str], *, every: bool) -> str:
        return f"m.scene {'@>' if every else '&&'} {self._bind(values, 'text[]')}"

    def _json(self, condition: Condition) -> str:
        """Only operators that fail on no value: Postgres may ask the parts of a condition in any order."""
        found = self._at(condition.field)
        values = [_json_value(value) for value in condition.values]
        match condition.op:
            case "exists":
                return f"jsonb_typeof({found}) <> 'null'"
            case "in" if len(values) == 1:
                return f"{found} = {self._bind(values[0], 'jsonb')}"
            case "in":
                return f"{found} = ANY({self._bind(values, 'jsonb[]')})"
            case "contains_any" | "contains_all" as op:
                elements = f"jsonb_array_elements(CASE WHEN jsonb_typeof({found}) = 'array' THEN {found} END)"
                sign = "&&" if op == "contains_any" else "@>"
                return f"ARRAY(SELECT {elements}) {sign} {self._bind(values, 'jsonb[]')}"
            case op:
                return self._compared(found, _SIGNS[op], cast("Json", condition.values[0]))

    def _compared(self, found: str, sign: str, limit: Json) -> str:
        if isinstance(limit.value, str):
            text = self._bind(limit.value, "text")
            return f"jsonb_typeof({found}) = 'string' AND ({found} #>> '{{}}') COLLATE \"C\" {sign} {text}"
        return f"jsonb_typeof({found}) = 'number' AND {found} {sign} {self._bind(_json_value(limit), 'jsonb')}"

    def _at(self, field: Field) -> str:
        """The value of a path. Step by step through objects: `#>` would also count through arrays."""
        return f"(m.metadata -> {' -> '.join(self._bind(step, 'text') for step in field.path)})"


def _json_value(value: Value) -> msgspec.Raw:
    """Spelled as stored metadata is, so that large floats are the same number; and no list, which would be an array."""
    return msgspec.Raw(exact_json(cast("Json", value).value))

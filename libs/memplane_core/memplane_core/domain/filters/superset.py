"""The part of a filter that the index can apply: never less than what passes the whole, and sometimes exactly that."""

from datetime import UTC, datetime, timedelta
from typing import Final, cast

import msgspec

from memplane_core.domain.filters.tree import And, Condition, Filter, Not, Or
from memplane_core.domain.index import IndexFilter

_COLUMNS: Final = ("user_id", "agent_id", "session_id", "memory_type")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)


class _Bounds(msgspec.Struct, frozen=True):
    """Epoch seconds, both inclusive; None is no bound."""

    low: int | None = None
    high: int | None = None


def index_superset(where: Filter, *, alive_at: int) -> IndexFilter:
    """What every memory that passes `where` fulfils, as far as the index has columns for it.

    Args:
        where: The whole filter.
        alive_at: What expires at or before this epoch second need not be found. It is the clock and nothing else: a
            filter on `expires_at` is Postgres's, so that answers can be told apart without it.
    """
    occurred = _bounds(where)
    allowed = {column: _allowed(where, column) for column in _COLUMNS}
    return IndexFilter(
        alive_at=alive_at,
        occurred_from=occurred.low,
        occurred_to=occurred.high,
        **{column: None if values is None else tuple(sorted(values)) for column, values in allowed.items()},
    )


def seen_by_index(where: Filter) -> bool:
    """Whether `index_superset` says all of it, so that Postgres need only check what the index is late with."""
    match where:
        case And():
            return all(seen_by_index(part) for part in where.parts)
        case Or():
            column = _only_column(where)
            return column is not None and _allowed(where, column) is not None
        case Not():
            return _is_missing(where) and _column(where.part) in _COLUMNS
        case Condition():
            return (where.field.name in _COLUMNS and where.op == "in") or _is_whole_bound(where)


def _is_whole_bound(condition: Condition) -> bool:
    """A bound that floored seconds can say: from a whole second on, or before one."""
    if condition.field.name != "occurred_at" or condition.op not in ("gte", "lt"):
        return False
    return cast("datetime", condition.values[0]).microsecond == 0


def _allowed(where: Filter, column: str) -> frozenset[str] | None:
    """The values, "" for a missing one, that a passing memory can have in a column; None for any."""
    match where:
        case And():
            known = [values for part in where.parts if (values := _allowed(part, column)) is not None]
            return frozenset(known[0]).intersection(*known) if known else None
        case Or():
            each = [_allowed(part, column) for part in where.parts]
            known = [values for values in each if values is not None]
            return frozenset(known[0]).union(*known) if len(known) == len(each) else None
        case Not():
            return frozenset(("",)) if _is_missing(where) and _column(where.part) == column else None
        case Condition():
            if where.op != "in" or where.field.name != column:
                return None
            return frozenset(cast("tuple[str, ...]", where.values))


def _bounds(where: Filter) -> _Bounds:
    """Between which seconds, floored, a passing memory has its `occurred_at`."""
    match where:
        case And():
            each = [_bounds(part) for part in where.parts]
            lows = [bounds.low for bounds in each if bounds.low is not None]
            highs = [bounds.high for bounds in each if bounds.high is not None]
            return _Bounds(max(lows, default=None), min(highs, default=None))
        case Or():
            each = [_bounds(part) for part in where.parts]
            lows = [bounds.low for bounds in each if bounds.low is not None]
            highs = [bounds.high for bounds in each if bounds.high is not None]
            return _Bounds(
                min(lows) if len(lows) == len(each) else None, max(highs) if len(highs) == len(each) else None
            )
        case Not():
            return _Bounds()
        case Condition():
            return _condition_bounds(where) if where.field.name == "occurred_at" else _Bounds()


def _condition_bounds(condition: Condition) -> _Bounds:
    times = cast("tuple[datetime, ...]", condition.values)
    match condition.op:
        case "in":
            return _Bounds(_floor(min(times)), _floor(max(times)))
        case "gt" | "gte":
            return _Bounds(low=_floor(times[0]))
        case "lt" if times[0].microsecond == 0:
            return _Bounds(high=_floor(times[0]) - 1)
        case "lt" | "lte":
            return _Bounds(high=_floor(times[0]))
        case _:
            return _Bounds()


def _floor(moment: datetime) -> int:
    """Epoch seconds as the index stores them. Not `timestamp()`, which rounds late years up."""
    return (moment - _EPOCH) // _SECOND


def _is_missing(where: Not) -> bool:
    return isinstance(where.part, Condition) and where.part.op == "exists"


def _column(where: Filter) -> str:
    return where.field.name if isinstance(where, Condition) else ""


def _only_column(where: Or) -> str | None:
    """The one entity column that all parts are about."""
    columns = {_column(part.part if isinstance(part, Not) else part) for part in where.parts}
    return columns.pop() if len(columns) == 1 and columns <= set(_COLUMNS) else None

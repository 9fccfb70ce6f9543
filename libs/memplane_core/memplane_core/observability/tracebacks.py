"""Errors as they are logged: what was raised where, without values that a message may quote.

Drivers and parsers quote what they stumble over (`invalid input for query argument $3: 'the memory'`), and connection
errors may quote addresses with passwords in them.
"""

import traceback
from types import TracebackType
from typing import Final

from memplane_core.domain.errors import MemplaneError

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_SPEAK_OF_CODE: Final = (ArithmeticError, AssertionError, AttributeError, ImportError, NameError, RuntimeError)
"""Builtin errors whose messages name things of the program, not values that came from outside."""

_MOST_LINKED: Final = 8


def describe(error: BaseException) -> str:
    """The kind of `error`, with as much of its message as cannot hold anybody's data."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    known = _known(error)
    return f"{name}: {known}" if known else name


def _known(error: BaseException) -> str:
    if isinstance(error, MemplaneError):
        return error.detail if error.status >= 500 else ""
    if isinstance(error, OSError):
        return error.strerror or ""
    if code := getattr(error, "sqlstate", None):
        where = (getattr(error, name, None) for name in ("table_name", "column_name", "constraint_name"))
        return " ".join(["SQLSTATE", str(code), *(str(name) for name in where if name)])
    return str(error) if type(error).__module__ == "builtins" and isinstance(error, _SPEAK_OF_CODE) else ""


def format_error(error: BaseException) -> str:
    """`error` with the places that it came through, and what it came from, oldest first."""
    parts: list[str] = []
    linked: BaseException | None = error
    while linked is not None and len(parts) < _MOST_LINKED:
        places = "".join(traceback.format_tb(linked.__traceback__))
        parts.append(f"{places}{describe(linked)}")
        parts += [format_error(inner) for inner in getattr(linked, "exceptions", ())[:_MOST_LINKED]]
        linked = linked.__cause__ or (None if linked.__suppress_context__ else linked.__context__)
    return "\n\n".join(reversed(parts))


def format_exc_info(exc_info: ExcInfo) -> str:
    """The same, for structlog."""
    return "" if exc_info[1] is None else format_error(exc_info[1])

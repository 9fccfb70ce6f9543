"""Milvus filter expressions. Every value from outside goes through `quoted`, and nowhere else is text put together."""

from collections.abc import Iterable

from memplane_core.domain.index import IndexFilter, IndexKey

# Inside double quotes Lite and servers agree on these alone; everything else must stand as it is, in UTF-8.
# What json.dumps makes of text is read differently by both.
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})

_INTEGERS = range(-(2**63) + 1, 2**63)
"""A server reads the minus sign apart from the digits, so that the least of 64 bits is too large for it."""


def quoted(text: str) -> str:
    """A string literal that Milvus reads back as exactly `text`.

    Raises:
        ValueError: The text has a lone surrogate or a NUL, which no store of ours can hold.
    """
    if "\0" in text:
        raise ValueError(f"{text!r} has a NUL character")
    text.encode()  # UnicodeEncodeError is a ValueError
    return f'"{text.translate(_ESCAPES)}"'


def superset(where: IndexFilter) -> str | None:
    """The expression of a filter, or None when no row can pass it because one of its lists is empty."""
    terms = [f"expires_at > {_integer(where.alive_at)}"]
    for column, values in (
        ("user_id", where.user_id),
        ("agent_id", where.agent_id),
        ("session_id", where.session_id),
        ("memory_type", where.memory_type),
    ):
        if values is not None:
            if not values:
                return None
            terms.append(_one_of(column, values))
    if where.occurred_from is not None:
        terms.append(f"occurred_at >= {_integer(where.occurred_from)}")
    if where.occurred_to is not None:
        terms.append(f"occurred_at <= {_integer(where.occurred_to)}")
    return " and ".join(terms)


def is_narrow(where: IndexFilter) -> bool:
    """Whether the filter asks for more than what has not expired, which nearly everything passes."""
    return where != IndexFilter(alive_at=where.alive_at)


def any_key(keys: Iterable[IndexKey]) -> str:
    """The rows of these keys. The form is one that Lite looks up by primary key instead of scanning for it."""
    return f"id in [{', '.join(quoted(str(key)) for key in keys)}]"


def key_range(after: str, until: str | None) -> str:
    """The rows whose keys, as texts, come after `after` and not after `until`."""
    start = f"id > {quoted(after)}"
    return start if until is None else f"{start} and id <= {quoted(until)}"


def _one_of(column: str, values: tuple[str, ...]) -> str:
    if len(values) == 1:
        return f"{column} == {quoted(values[0])}"
    return f"{column} in [{', '.join(quoted(value) for value in values)}]"


def _integer(value: int) -> int:
    if value not in _INTEGERS:
        raise ValueError(f"{value!r} is out of range for Milvus")
    return value

"""Filters as requests carry them: the grammar in a body, single fields in a query string."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from memplane_core.domain.errors import Fault, InvalidRequest
from memplane_core.domain.filters import Filter, parse_filter

Filters = Annotated[
    dict[str, Any],
    msgspec.Meta(
        description="What memories must match; all of them when left out. Conditions side by side are ANDed.",
        examples=[{"user_id": "ana", "scene": ["travel"], "priority": {"gt": 3}}],
    ),
]
"""Raw: `domain.filters.parse_filter` reads it. A type could not say where in it a fault is."""

QUERY_FIELDS: Final = (
    *("user_id", "agent_id", "session_id", "memory_type"),
    *("external_id", "actor", "source", "scene"),
)
"""Fields that a query string can name; each asks for equality, `scene` for a memory that has it."""


def query_moment(given: str | None) -> str | float | None:
    """A moment of a query string as a body would have it: epoch seconds are a number there."""
    try:
        return given if given is None else float(given)
    except ValueError:
        return given


def query_filter(given: Mapping[str, str | None]) -> Filter:
    """The filter of a query string's parameters, of which those that are None were left out.

    Raises:
        InvalidRequest: No memory can have such a value; the fault names the parameter.
    """
    try:
        return parse_filter({name: value for name, value in given.items() if value is not None}, pointer="")
    except InvalidRequest as error:
        faults = [Fault(fault.pointer.removeprefix("/"), fault.detail) for fault in error.faults]
        raise InvalidRequest(error.detail.removeprefix("/"), faults=faults) from None

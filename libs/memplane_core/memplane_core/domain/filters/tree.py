"""What a filter is once it is read: few operators, typed values, nothing that depends on how it was spelled."""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.memory import ENTITY_BYTES, LABEL_BYTES

Kind = Literal["text", "number", "flag", "time", "id", "tags", "json"]

Op = Literal["in", "gt", "gte", "lt", "lte", "contains_any", "contains_all", "exists"]
"""What is left of the operators: `eq`, `ne`, `nin` and null are written with these and `Not`."""


class Field(msgspec.Struct, frozen=True):
    """What a condition is about.

    Attributes:
        limit: Most bytes of a string that it can hold; 0 where it holds none.
        path: Keys that lead to a value of the metadata, outermost first.
    """

    name: str
    kind: Kind
    limit: int = 0
    path: tuple[str, ...] = ()


FIELDS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in (
        Field("id", "id"),
        Field("external_id", "text", ENTITY_BYTES),
        Field("actor", "text", ENTITY_BYTES),
        Field("scene", "tags", LABEL_BYTES),
        Field("source", "text", LABEL_BYTES),
        Field("memory_type", "text", LABEL_BYTES),
        Field("user_id", "text", ENTITY_BYTES),
        Field("agent_id", "text", ENTITY_BYTES),
        Field("session_id", "text", ENTITY_BYTES),
        Field("importance", "number"),
        Field("priority", "number"),
        Field("pinned", "flag"),
        Field("occurred_at", "time"),
        Field("expires_at", "time"),
        Field("valid_from", "time"),
        Field("valid_to", "time"),
        Field("superseded_by", "id"),
        Field("created_at", "time"),
        Field("updated_at", "time"),
        Field("last_accessed_at", "time"),
        Field("access_count", "number"),
        Field("version", "number"),
    )
}
"""Fields of a memory that a filter can name, besides `metadata.<path>`."""


class Json(msgspec.Struct, frozen=True):
    """A JSON value that can be hashed; `raw` has its keys in order."""

    raw: bytes

    @classmethod
    def of(cls, value: object) -> "Json":
        """The value, frozen."""
        return cls(msgspec.json.encode(value, order="sorted"))

    @property
    def value(self) -> Any:
        """The value as it was given."""
        return msgspec.json.decode(self.raw)


Value = str | float | bool | datetime | UUID | Json


class Condition(msgspec.Struct, frozen=True, tag=True):
    """One field against values of its kind: one for the comparisons, none for `exists`, at least one for the rest."""

    field: Field
    op: Op
    values: tuple[Value, ...] = ()


class And(msgspec.Struct, frozen=True, tag=True):
    """Holds where all parts do; without parts, everywhere."""

    parts: "tuple[Filter, ...]"


class Or(msgspec.Struct, frozen=True, tag=True):
    """Holds where a part does; it has at least one."""

    parts: "tuple[Filter, ...]"


class Not(msgspec.Struct, frozen=True, tag=True):
    """Holds where `part` does not."""

    part: "Filter"


Filter = Condition | And | Or | Not

EVERYTHING: Final = And(())
"""The filter that every memory passes."""


def fingerprint(where: Filter) -> bytes:
    """32 bytes that are equal for equal filters alone, however the request was spelled, now and after a restart."""
    return hashlib.sha256(msgspec.msgpack.encode(where)).digest()


def fields_of(where: Filter) -> Iterator[Field]:
    """The field of each condition, in order."""
    match where:
        case Condition():
            yield where.field
        case Not():
            yield from fields_of(where.part)
        case And() | Or():
            for part in where.parts:
                yield from fields_of(part)

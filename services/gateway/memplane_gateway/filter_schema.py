"""What a filter may say, for the OpenAPI document: from the table of fields and operators that filters are read by."""

from typing import Any, Final

from memplane_core.domain.filters import FIELDS, MAX_CONDITIONS, MAX_DEPTH, MAX_LIST, Kind, operators_of

Json = dict[str, Any]

NAME: Final = "Filter"
REFERENCE: Final = f"#/components/schemas/{NAME}"

_DESCRIPTION: Final = f"""\
What memories must match. Conditions side by side must all hold; `AND` and `OR` take lists of filters and `NOT` one, to
{MAX_DEPTH} levels and {MAX_CONDITIONS} conditions. `{{}}` matches everything.

* A bare value asks for equality, a bare list for one of its values; on `scene` for all of them. Several operators of
  one field must all hold.
* null asks for what is missing. What is missing equals nothing else and is neither above nor below anything; `ne`,
  `nin` and `NOT` hold there.
* `metadata.a.b` leads into objects; a dot or a backslash that belongs to a key is written `\\.` or `\\\\`. Values are
  equal when they are the same JSON, where 1 is 1.0 but not "1" or true.
* Times are RFC 3339 or epoch seconds. Strings are ordered by their bytes in UTF-8.
"""
_VALUES: Final[dict[Kind, Json]] = {
    "text": {"type": ["string", "null"]},
    "tags": {"type": ["string", "null"]},
    "number": {"type": ["number", "null"]},
    "flag": {"type": ["boolean", "null"]},
    "time": {"type": ["string", "number", "null"]},
    "id": {"type": ["string", "null"], "format": "uuid"},
    "json": {},
}
_ORDERED: Final[dict[Kind, Json]] = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "time": {"type": ["string", "number"]},
    "json": {"type": ["string", "number"]},
}
_NAMES: Final[dict[Kind, str]] = {
    "text": "TextCondition",
    "tags": "SceneCondition",
    "number": "NumberCondition",
    "flag": "FlagCondition",
    "time": "TimeCondition",
    "id": "IdCondition",
    "json": "MetadataCondition",
}
_MEANINGS: Final = {
    "eq": "Equal.",
    "ne": "Not equal, or missing.",
    "in": "Equal to one of them.",
    "nin": "Equal to none of them, or missing.",
    "gt": "Above.",
    "gte": "Above or equal.",
    "lt": "Below.",
    "lte": "Below or equal.",
    "contains_any": "A list that holds one of them.",
    "contains_all": "A list that holds all of them.",
    "exists": "Whether there is a value.",
}


def filter_schemas() -> dict[str, Json]:
    """The components that describe a filter, by name."""
    group = {"allOf": [{"$ref": REFERENCE}], "minProperties": 1}
    groups = {"type": "array", "items": group, "minItems": 1, "maxItems": MAX_LIST}
    fields = {field.name: _reference(field.kind) for field in FIELDS.values()}
    return {
        NAME: {
            "type": "object",
            "description": _DESCRIPTION,
            "properties": {**fields, "AND": groups, "OR": groups, "NOT": group},
            "patternProperties": {r"^metadata\..": _reference("json")},
            "additionalProperties": False,
        },
        **{name: _condition(kind) for kind, name in _NAMES.items()},
    }


def _reference(kind: Kind) -> Json:
    return {"$ref": f"#/components/schemas/{_NAMES[kind]}"}


def _condition(kind: Kind) -> Json:
    operators = {op: {**_operand(kind, op), "description": _MEANINGS[op]} for op in operators_of(kind)}
    asked = {"type": "object", "properties": operators, "additionalProperties": False, "minProperties": 1}
    bare = _VALUES[kind] or {"type": ["string", "number", "boolean", "null"]}
    return {"anyOf": [bare, _list_of(_VALUES[kind]), asked]}


def _operand(kind: Kind, op: str) -> Json:
    match op:
        case "exists":
            return {"type": "boolean"}
        case "eq" | "ne":
            return _VALUES[kind]
        case "gt" | "gte" | "lt" | "lte":
            return _ORDERED[kind]
        case "contains_any" | "contains_all" if kind == "tags":
            return _list_of({"type": "string"})
        case _:
            return _list_of(_VALUES[kind])


def _list_of(value: Json) -> Json:
    return {"type": "array", "items": value, "minItems": 1, "maxItems": MAX_LIST}

"""Schemas of bodies for the OpenAPI document, from the types that check them."""

import re
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from memplane_gateway import filter_schema

Json = dict[str, Any]

_ATTRIBUTE: Final = re.compile(r"^ {4}(?P<name>\w+): (?P<text>.+(?:\n {8,}.+)*)", re.MULTILINE)
_TIMES: Final = re.compile(r"\w+_at|now")


def body_schemas(bodies: Iterable[Any]) -> Json:
    """Component schemas of `bodies` and all they refer to, by name.

    On top of what msgspec says of a type, the fields that its docstring explains get their explanation, times their
    format, and filters their grammar.
    """
    _, found = msgspec.json.schema_components(tuple(bodies), ref_template="#/components/schemas/{name}")
    schemas = cast("dict[str, Json]", found)
    for name, schema in schemas.items():
        if name.endswith("Patch") or name == "Bind":
            schema["minProperties"] = 1  # nothing at all is no change, and binds to nobody
    for schema in schemas.values():
        _explain(schema)
        for name, field in cast("dict[str, Json]", schema.get("properties", {})).items():
            if _TIMES.fullmatch(name):
                _mark_time(field)
            if name == "filters":
                schema["properties"][name] = {"allOf": [{"$ref": filter_schema.REFERENCE}], "default": {}}
    return schemas | filter_schema.filter_schemas()


def _explain(schema: Json) -> None:
    """Move what the docstring says of attributes to the properties."""
    summary, _, attributes = str(schema.get("description", "")).partition("\n\nAttributes:\n")
    if not attributes:
        return
    schema["description"] = summary
    for match in _ATTRIBUTE.finditer(attributes):
        field = cast("Json | None", schema["properties"].get(match["name"]))
        if field is None:
            continue
        text = " ".join(match["text"].split())
        if "$ref" in field:  # a description beside a reference would be read as the referred type's
            schema["properties"][match["name"]] = {"allOf": [field], "description": text}
        else:
            field["description"] = text


def _mark_time(field: Json) -> None:
    for kind in cast("list[Json]", field.get("anyOf", [field])):
        if kind.get("type") == "string":
            kind["format"] = "date-time"

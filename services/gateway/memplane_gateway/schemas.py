"""Schemas of bodies for the OpenAPI document, from the types that check them."""

import inspect
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

    On top of what msgspec says of a type, the fields that its docstring explains, or that of a type which it inherits
    from, get their explanation, times their format, and filters their grammar.
    """
    bodies = tuple(bodies)
    _, found = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schemas = cast("dict[str, Json]", found)
    for name, schema in schemas.items():
        if name.endswith("Patch") or name == "Bind":
            schema["minProperties"] = 1  # nothing at all is no change, and binds to nobody
    kinds = _structs(bodies)
    for kind, schema in schemas.items():
        _explain(schema, kinds.get(kind))
        for name, field in cast("dict[str, Json]", schema.get("properties", {})).items():
            if _TIMES.fullmatch(name):
                _mark_time(field)
            if name == "filters":
                schema["properties"][name] = {"allOf": [{"$ref": filter_schema.REFERENCE}], "default": {}}
    return schemas | filter_schema.filter_schemas()


def _structs(bodies: Iterable[Any]) -> dict[str, type]:
    """The classes that bodies are made of, by name."""
    found: dict[str, type] = {}
    ahead: list[Any] = list(msgspec.inspect.multi_type_info(bodies))
    while ahead:
        its = ahead.pop()
        if isinstance(its, msgspec.inspect.StructType):
            if its.cls.__name__ not in found:
                found[its.cls.__name__] = its.cls
                ahead += [field.type for field in its.fields]
        elif isinstance(its, msgspec.inspect.Type):
            ahead += [getattr(its, name) for name in its.__struct_fields__]
        elif isinstance(its, tuple):
            ahead += cast("tuple[Any, ...]", its)
    return found


def _explain(schema: Json, kind: type | None) -> None:
    """Move what docstrings say of attributes to the properties: those of the bases first, which its own goes before."""
    fields: Json = schema.get("properties", {})
    for cls in reversed(kind.__mro__) if kind else ():
        summary, _, attributes = inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n\nAttributes:\n")
        if cls is kind and attributes:
            schema["description"] = summary
        for match in _ATTRIBUTE.finditer(attributes):
            if (field := cast("Json | None", fields.get(match["name"]))) is None:
                continue
            text = " ".join(match["text"].split())
            if "$ref" in field:  # a description beside a reference would be read as the referred type's
                fields[match["name"]] = {"allOf": [field], "description": text}
            else:
                field["description"] = text


def _mark_time(field: Json) -> None:
    for kind in cast("list[Json]", field.get("anyOf", [field])):
        if kind.get("type") == "string":
            kind["format"] = "date-time"

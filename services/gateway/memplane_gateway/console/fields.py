"""Fields of forms that stand for fields of a body."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from memplane_gateway.console.visits import Form

FieldKind = Literal["number", "text", "choice", "tick"]


class Field(msgspec.Struct, frozen=True):
    """A field of a form.

    Attributes:
        name: Of the field in the body; a dot leads into an object.
        options: Of a choice.
        help: Stands below it.
    """

    name: str
    label: str
    kind: FieldKind = "number"
    options: Sequence[str] = ()
    help: str = ""

    def of(self, body: dict[str, Any]) -> Any:
        """Its value in a body; None where it has none."""
        value: Any = body
        for step in self.name.split("."):
            value = value.get(step) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType]
        return value  # pyright: ignore[reportUnknownVariableType]


def filled_in(form: Form, fields: Sequence[Field], *, empty: bool) -> dict[str, Any]:
    """The fields of a body that a form has a value for.

    Args:
        form: As it was sent.
        fields: That it has.
        empty: Whether one that was left empty is null, rather than left out.
    """
    body: dict[str, Any] = {}
    for field in fields:
        value = form.number(field.name) if field.kind == "number" else form.text(field.name)
        if field.kind == "tick":
            value = form.on(field.name)
        if value is None and not empty:
            continue
        outer, _, inner = field.name.rpartition(".")
        (body.setdefault(outer, {}) if outer else body)[inner] = value
    return body

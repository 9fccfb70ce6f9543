"""The page about filters shows filters that work, and names what there is."""

import re
from pathlib import Path

import msgspec
import pytest

from memplane_core.contracts.filters import QUERY_FIELDS
from memplane_core.domain.filters import FIELDS, operators_of, parse_filter

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()


@pytest.mark.parametrize("example", re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
def test_an_example_is_a_filter(example: str) -> None:
    parse_filter(msgspec.json.decode(example))


def test_every_field_and_operator_is_named() -> None:
    for name in (*FIELDS, *QUERY_FIELDS, *operators_of("json")):
        assert f"`{name}`" in PAGE, name

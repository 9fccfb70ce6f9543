"""Each trouble of docs/troubles.md has a test, and each test that is named there is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/troubles.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def rows() -> list[str]:
    """The table's, without its head."""
    return [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]


def names_in(path: Path) -> set[str]:
    """Tests of a file, those of a class with its name before them."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}::{each.name}" for each in inner}
    return {name for name in names if name.rpartition("::")[2].startswith("test_")}


def test_every_trouble_has_one() -> None:
    assert len(rows()) >= 19
    assert [row for row in rows() if not NAMED.search(row)] == []


def test_every_one_that_is_named_is_there() -> None:
    named = NAMED.findall(PAGE.read_text())
    assert len(named) >= 25
    missing = [f"{path}::{name}" for path, name in named if name not in names_in(ROOT / path)]
    assert missing == []

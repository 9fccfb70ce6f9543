"""The table of values in the chart's README, made from the comments of values.yaml.

`python helm/values_table.py write` writes it, `check` fails where it is not up to date.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent / "memplane"
BEGIN: Final = "<!-- values: made by `make chart-table` -->"
END: Final = "<!-- end of values -->"

_KEY: Final = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):(?P<rest>.*)$")


class Undocumented(Exception):
    """A value has no comment."""


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Path, default and meaning of each value. Raises Undocumented."""
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        match = _KEY.match(line)
        if match is not None:
            indent = len(match["indent"])
            while path and path[-1][0] >= indent:
                path.pop()
            path.append((indent, match["key"]))
            names = [name for _, name in path]
            value: Any = values
            for name in names:
                value = value[name]
            if comment:
                default = "" if match["rest"] == "" else f"`{json.dumps(value)}`"
                yield ".".join(names), default, " ".join(comment)
            elif match["rest"] and not _is_inside(names):
                raise Undocumented(".".join(names))
        comment = []


def _is_inside(names: list[str]) -> bool:
    """Parts of what is documented as a whole."""
    return "resources" in names[:-1] or names[-1] in ("requests", "limits")


def rendered() -> str:
    """The table."""
    lines = ["| value | default | |", "|---|---|---|"]
    seen: set[str] = set()
    for name, default, meaning in rows((CHART / "values.yaml").read_text(encoding="utf-8")):
        if name.startswith("workers.maintenance."):  # as those of `index`
            continue
        if name not in seen:
            lines.append(f"| `{name.replace('workers.index', 'workers.<class>')}` | {default} | {meaning} |")
        seen.add(name)
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    readme = CHART / "README.md"
    text = readme.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    new = f"{head}{BEGIN}\n\n{rendered()}\n\n{END}{tail}"
    if arguments == ["write"]:
        readme.write_text(new, encoding="utf-8")
        return 0
    if new != text:
        print("the table of values is not up to date: make chart-table")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

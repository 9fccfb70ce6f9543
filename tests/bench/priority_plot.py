"""`python -m tests.bench.priority_plot`: draws docs/priority.svg, a year of priorities by the rules as they are.

A run a day, from the priority that new memories have. A test holds the file against what this draws.
"""

from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from memplane_core.domain.memory import DEFAULT_PRIORITY
from memplane_core.domain.priority import HIGHEST, LOWEST, PriorityRules, Usage, stepped

FILE: Final = Path(__file__).parents[2] / "docs" / "priority.svg"

_DAYS: Final = 365
_LEFT, _RIGHT, _TOP, _BOTTOM = 240, 40, 28, 44
_WIDTH, _BAND, _GAP = 640, 52, 28
_INK, _FAINT, _LINE = "#1f2933", "#cbd2d9", "#0b6e99"


class Pattern(msgspec.Struct, frozen=True):
    """A way of being used.

    Attributes:
        uses: Days on which it is recalled.
        praised: Days on which it is called helpful, once for each time.
    """

    name: str
    uses: frozenset[int]
    praised: tuple[int, ...] = ()


PATTERNS: Final = (
    Pattern("recalled every day", frozenset(range(1, 366))),
    Pattern("twice a week", frozenset((*range(3, 366, 7), *range(7, 366, 7)))),
    Pattern("once a week", frozenset(range(7, 366, 7))),
    Pattern("once a month", frozenset(range(30, 366, 30))),
    Pattern("ten times in the first month", frozenset(range(3, 31, 3))),
    Pattern("never, 5 x helpful on day 90", frozenset(), (90,) * 5),
    Pattern("never", frozenset()),
)


def year(pattern: Pattern, rules: PriorityRules) -> list[int]:
    """The priority after each day's run; the first is that of day 0."""
    priorities = [DEFAULT_PRIORITY]
    for day in range(1, _DAYS + 1):
        recalls = sum(use <= day for use in pattern.uses)
        usage = Usage(age_h=24.0 * day, recalls=recalls, helpful=sum(praise <= day for praise in pattern.praised))
        priorities.append(stepped(priorities[-1], usage, rules))
    return priorities


def draw(rules: PriorityRules | None = None) -> str:
    """The plot, as SVG."""
    rules = rules or PriorityRules()
    height = _TOP + len(PATTERNS) * (_BAND + _GAP) + _BOTTOM
    width = _LEFT + _WIDTH + _RIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="13">'
    )
    title = "<title>Priority over a year, by how a memory is used</title>"
    lines = [head, title, f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    for n, pattern in enumerate(PATTERNS):
        lines += _band(pattern, rules, top=_TOP + n * (_BAND + _GAP))
    foot = height - _BOTTOM + 8
    lines += [_text(str(day), _x(day), foot, anchor="middle") for day in (0, 30, 90, 180, 270, 365)]
    lines.append(_text("days since it was written", _LEFT + _WIDTH / 2, foot + 24, anchor="middle"))
    return "\n".join([*lines, "</svg>", ""])


def _band(pattern: Pattern, rules: PriorityRules, *, top: int) -> Iterator[str]:
    """One pattern: its name, the five levels, when it was used, and where its priority was."""
    yield _text(pattern.name, _LEFT - 30, top + _BAND / 2 + 4, anchor="end")
    for level in (LOWEST, HIGHEST):
        yield _text(str(level), _LEFT - 10, _y(level, top) + 4, anchor="end")
    levels = [f"M{_LEFT} {_y(level, top):.1f}h{_WIDTH}" for level in range(LOWEST, HIGHEST + 1)]
    yield _path(levels, _FAINT, width=0.6)
    if pattern.uses:
        yield _path([f"M{_x(day):.1f} {top + _BAND + 2}v6" for day in sorted(pattern.uses)], _FAINT, width=1)
    steps: list[str] = []
    day = 0
    for level, days in groupby(year(pattern, rules)):
        steps.append(f"{'L' if steps else 'M'}{_x(day):.1f} {_y(level, top):.1f}")
        day = min(day + len(list(days)), _DAYS)
        steps.append(f"H{_x(day):.1f}")
    yield _path(steps, _LINE, width=2)


def _path(steps: list[str], colour: str, *, width: float) -> str:
    return f'<path d="{"".join(steps)}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def _text(text: str, x: float, y: float, *, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{_INK}">{escape(text)}</text>'


def _x(day: int) -> float:
    return _LEFT + _WIDTH * day / _DAYS


def _y(level: int, top: int) -> float:
    return top + _BAND * (HIGHEST - level) / (HIGHEST - LOWEST)


if __name__ == "__main__":
    FILE.write_text(draw())

"""Memories as a block of text for a prompt: the most useful that fit, in groups, none cut in two.

Pure. Lines are rendered one by one and joined by line feeds, over which the counters of `domain.budget` add up; so the
block is never longer than its budget.
"""

import collections
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from string import Template
from typing import Annotated, Final, Literal

import msgspec

from memplane_core.domain.budget import COUNTERS, Counter, at_least
from memplane_core.domain.errors import invalid

LONGEST_TEMPLATE: Final = 2_000

SESSION_GROUP: Final = "this session"
"""Heading of what a session holds."""

Line = Annotated[str, msgspec.Meta(max_length=LONGEST_TEMPLATE)]
GroupBy = Literal["memory_type", "session_id", "none"]
Order = Literal["useful", "time"]

ENTRY_NAMES: Final = (
    "n", "id", "date", "time", "who", "content", "actor", "memory_type", "source", "scene", "user_id", "agent_id",
    "session_id", "importance", "priority", "relevance",
)  # fmt: skip
"""What a memory's line can name."""

GROUP_NAMES: Final = ("group",)

MOST_NAMED: Final = 32
"""Names in one line of a template: a block costs time for each of them in each memory that is considered."""

LEAST_CUT: Final = 16
"""Code points of a memory that are worth giving without the rest."""

CUT: Final = "…"
_JOINER: Final = "\u200d"
_CUT_BACK: Final = 24
"""Code points that are given up to end at a space."""


class ContextTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the lines of a block look like. `$name` and `${name}` are replaced, `$$` is a dollar sign; nothing is run.

    Attributes:
        header: First line of the block; names nothing. Left out where it is empty, as are those of the groups.
        group: Line before the memories of a group; names `$group`.
        memory: A memory's own line or lines. Must name `$content`, which is its text to the byte, and only once. Can
            name `$n` (its number in the block, by which the answer tells its id), `$id`, `$date`, `$time` (in UTC),
            `$who` (the actor and a colon, nothing where there is none), `$actor`, `$memory_type`, `$source`, `$scene`,
            `$user_id`, `$agent_id`, `$session_id`, `$importance`, `$priority` and `$relevance`.
    """

    header: Line = "What is remembered, the most useful first. [Numbers] are for citing."
    group: Line = "## $group"
    memory: Line = "[$n] $date $who$content"


def check_template(template: ContextTemplate, *, pointer: str) -> None:
    """Raises InvalidRequest where a line names what is not known, or where memories would lack their text."""
    for name, known in (("header", ()), ("group", GROUP_NAMES), ("memory", ENTRY_NAMES)):
        line = Template(getattr(template, name))
        if "\0" in line.template:
            raise invalid(f"{pointer}/{name}", "must not hold a NUL character")
        if not line.is_valid():
            raise invalid(f"{pointer}/{name}", "has a $ that begins no name; a dollar sign is written $$")
        unknown = [named for named in line.get_identifiers() if named not in known]
        if unknown:
            can = "can name " + ", ".join(f"${its}" for its in known) if known else "can name nothing"
            raise invalid(f"{pointer}/{name}", f"names ${unknown[0]}, and {can}")
        if _named(line).total() > MOST_NAMED:
            raise invalid(f"{pointer}/{name}", f"can name {MOST_NAMED} things at most, each time counted")
    contents = _named(Template(template.memory))["content"]
    if contents != 1:
        raise invalid(f"{pointer}/memory", "must name $content" + (", and only once" if contents else ""))


def _named(line: Template) -> collections.Counter[str]:
    """How often a line names what."""
    found = line.pattern.finditer(line.template)
    return collections.Counter(name for match in found if (name := match["named"] or match["braced"]))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may come into a block.

    Attributes:
        group: Heading that it stands under.
        relevance: None where nobody was asked how relevant it is.
    """

    id: str
    group: str
    content: str
    occurred_at: datetime
    actor: str | None = None
    memory_type: str = ""
    source: str | None = None
    scene: Sequence[str] = ()
    user_id: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    importance: float | None = None
    priority: int | None = None
    relevance: float | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that share a part of the budget, the most useful first.

    Attributes:
        most: Tokens that they may take; what one section leaves is the next one's.
        order: In which order those that are taken stand within their group.
    """

    entries: Sequence[Entry]
    most: int
    order: Order = "useful"


class Placed(msgspec.Struct, frozen=True):
    """An entry of a block: its number there, and whether its text is cut."""

    n: int
    entry: Entry
    truncated: bool


class Block(msgspec.Struct, frozen=True):
    """A block of text.

    Attributes:
        tokens: What it comes to by the counter that was asked for.
        placed: In the order in which they stand in the text.
        left_out: Entries for which there was no room.
    """

    text: str
    tokens: int
    placed: list[Placed]
    left_out: int


def pack(
    sections: Sequence[Section],
    *,
    max_tokens: int,
    template: ContextTemplate,
    counter: Counter = "estimate",
    allow_truncation: bool = False,
) -> Block:
    """The entries that fit, taken in their order: one that is too long for what is left makes way for shorter ones.

    Groups stand in the order of the first entry that was taken into each, section by section. The numbers of entries
    follow their usefulness, whatever stands before what.

    Args:
        sections: In the order in which they may use the budget and stand in the text.
        max_tokens: Longest block.
        template: Checked by `check_template`.
        counter: What tokens are counted by.
        allow_truncation: The first entry of the last section that does not fit may be cut to what is left.
    """
    packer = _Packer(template, counter, max_tokens)
    left_out = 0
    parts: list[list[Placed]] = []
    for at, section in enumerate(sections):
        may_cut = allow_truncation and at == len(sections) - 1
        limit = min(max_tokens, packer.used + section.most)
        taken: list[Placed] = []
        for entry in section.entries:
            placed = packer.take(entry, at, limit=limit)
            if placed is None and may_cut:
                placed = packer.take_cut(entry, at, limit=limit)
                may_cut = placed is None
            if placed is None:
                left_out += 1
            else:
                taken.append(placed)
        parts.append(taken)
    return packer.block([(part, section.order) for part, section in zip(parts, sections, strict=True)], left_out)


class _Packer:
    """Counts what was taken: every line with the line feed before it."""

    def __init__(self, template: ContextTemplate, counter: Counter, max_tokens: int) -> None:
        self._count = COUNTERS[counter]
        self._header = Template(template.header).substitute()
        self._group = Template(template.group)
        self._memory = Template(template.memory)
        self._open: set[tuple[int, str]] = set()
        self._taken = 0
        self._max = max_tokens
        self.used = 0

    def take(self, entry: Entry, section: int, *, limit: int) -> Placed | None:
        """The entry, if it fits."""
        if at_least(entry.content) > limit - self.used:
            return None  # most of what is too long is, by far
        return self._fit(entry, section, entry.content, limit=limit)

    def take_cut(self, entry: Entry, section: int, *, limit: int) -> Placed | None:
        """The entry with as much of its text as fits, if that is worth it."""
        low, high = 0, len(entry.content) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._cost(entry, section, entry.content[:middle] + CUT) <= limit - self.used:
                low = middle
            else:
                high = middle - 1
        while low and (_joins(entry.content[low]) or entry.content[low - 1] == _JOINER):
            low -= 1
        kept = entry.content[:low]
        space = max(kept.rfind(" "), kept.rfind("\n"))
        if not entry.content[low].isspace() and space > max(0, low - _CUT_BACK):
            kept = kept[:space]
        kept = kept.rstrip()
        if len(kept) < LEAST_CUT:
            return None
        return self._fit(entry, section, kept + CUT, limit=limit, truncated=True)

    def _fit(self, entry: Entry, section: int, content: str, *, limit: int, truncated: bool = False) -> Placed | None:
        cost = self._cost(entry, section, content)
        if self.used + cost > limit:
            return None
        self.used += cost
        self._taken += 1
        self._open.add((section, entry.group))
        shown = entry if not truncated else msgspec.structs.replace(entry, content=content)
        return Placed(self._taken, shown, truncated)

    def _cost(self, entry: Entry, section: int, content: str) -> int:
        shown = entry if content is entry.content else msgspec.structs.replace(entry, content=content)
        lines = [self._line(self._taken + 1, shown)]
        if (section, entry.group) not in self._open and (heading := self._heading(entry.group)):
            lines.append(heading)
        if self.used == 0 and self._header:
            lines.append(self._header)
        feeds = len(lines) - (self.used == 0)
        return sum(map(self._count, lines)) + feeds

    def _heading(self, group: str) -> str:
        return self._group.substitute(group=group) if group else ""

    def _line(self, n: int, entry: Entry) -> str:
        at = entry.occurred_at.astimezone(UTC)
        return self._memory.substitute(
            n=n,
            id=entry.id,
            date=f"{at.year:04}-{at:%m-%d}",
            time=f"{at:%H:%M}",
            who=f"{entry.actor}: " if entry.actor else "",
            content=entry.content,
            actor=entry.actor or "",
            memory_type=entry.memory_type,
            source=entry.source or "",
            scene=", ".join(entry.scene),
            user_id=entry.user_id or "",
            agent_id=entry.agent_id or "",
            session_id=entry.session_id or "",
            importance=_number(entry.importance),
            priority=_number(entry.priority),
            relevance=_number(entry.relevance),
        )

    def block(self, parts: Sequence[tuple[list[Placed], Order]], left_out: int) -> Block:
        """What was taken, as text."""
        lines: list[str] = []
        standing: list[Placed] = []
        for taken, order in parts:
            groups: dict[str, list[Placed]] = {}
            for placed in taken:
                groups.setdefault(placed.entry.group, []).append(placed)
            for group, members in groups.items():
                if order == "time":
                    members.sort(key=lambda its: (its.entry.occurred_at, its.n))
                if heading := self._heading(group):
                    lines.append(heading)
                lines += [self._line(its.n, its.entry) for its in members]
                standing += members
        if lines and self._header:
            lines.insert(0, self._header)
        text = "\n".join(lines)
        tokens = self._count(text)
        assert tokens <= self._max, "the counters add up over lines"
        return Block(text, tokens, standing, left_out)


def _joins(character: str) -> bool:
    """Whether it belongs to the character before it: an accent, a variation, a part of a joined emoji."""
    if unicodedata.combining(character) or "\U0001f3fb" <= character <= "\U0001f3ff":
        return True
    return character in (_JOINER, "\ufe0f")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"

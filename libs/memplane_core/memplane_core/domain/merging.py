"""Which memories are one thing told more than once, and which of them stays.

Cosines alone cannot tell: "three apples" and "four apples" are nearer to each other than two ways to say one of them.
So two memories are near-copies where their vectors are alike *and* their words say the same (`said`).
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt

from memplane_core.domain.index import FloatArray

Guard = Literal["words", "facts", "none"]
"""What of two texts has to be the same besides their vectors: see `said`."""

SCENES: Final = 32
"""Most scenes that a memory has."""

MAX_APART: Final = timedelta(days=1)
"""Two memories with given times are of one event when they are no further apart than this."""

_APART: Final = np.float32(-2.0)
"""Similarity of what must not be one, whatever the vectors say."""

_DECIMALS: Final = 4
"""Similarities are compared to so many places: sums of floats differ in the seventh with the order of adding."""

_BLOCK: Final = 256
"""Rows of a matrix of cosines that are held at a time."""

_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD: Final = re.compile(
    rf"[{_CJK}]|(?<![^\W_])[-\u2212]?\d[\d.,:/]*\d|(?<![^\W_])[-\u2212]\d|[^\W_{_CJK}]+(?:[-./:@'\u2019][^\W_{_CJK}]+)*|[^\s\w]"
)
_NOT: Final = re.compile(r"\b(\w+)n['\u2019]t\b")
_SHORT: Final = re.compile(r"['\u2019](?:ve|d|ll|re|m)\b")
_CALLED_FOR: Final = frozenset("%#&@?\uff1f")
"""Marks that say something. Signs of money, arithmetic and emoji do too, and are told by their category."""

_MEANT: Final = frozenset(("Sc", "Sm", "So"))
_FILLERS: Final = frozenset(
    "a an the so well oh ah hey hi ok okay please pls just really also btw um uh ~ | "  # noqa: SIM905 - shorter so
    "\u5462 \u554a \u5440 \u5427 \u54e6 \u55ef \u54c8 \u5566".split()
)
_DENIALS: Final = frozenset(
    "no not never none nobody nothing nowhere neither nor cannot without "  # noqa: SIM905 - shorter so
    "\u4e0d \u6ca1 \u6c92 \u65e0 \u7121 \u975e \u672a \u522b \u52ff \u83ab".split()
)


def threshold_of(span: float) -> float:
    """The cosine from which on vectors of a model count as near-copies, unless somebody sets another.

    A tenth of the model's span (`ModelProfile.span`) below 1: .98 for e5, .95 for bge-small, .925 for MiniLM. That is
    where the lower of the cosines of a text and its copy a month later are (docs/merging.md).
    """
    return round(1.0 - span / 10, 4)


def said(text: str, guard: Guard) -> tuple[str, ...]:
    """What has to be equal for two texts to say the same.

    * `words`: all words in their order, numbers and signs among them; not case, width, marks and fillers.
    * `facts`: numbers, whatever holds a digit, denials and signs, in any order.
    * `none`: nothing.
    """
    if guard == "none":
        return ()
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = _SHORT.sub("", _NOT.sub(r"\1 not", folded))
    words = [word for word in _WORD.findall(folded) if word not in _FILLERS and _says(word)]
    if guard == "words":
        return tuple(words)
    return tuple(sorted(word for word in words if word in _DENIALS or (not word.isalpha() and not _is_plain(word))))


def _says(word: str) -> bool:
    return word[-1].isalnum() or word in _CALLED_FOR or unicodedata.category(word) in _MEANT


def _is_plain(word: str) -> bool:
    """A word with marks inside it and no digit, like `mother-in-law`."""
    return len(word) > 1 and not any(character.isdigit() for character in word)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What is weighed of a memory.

    Attributes:
        expires_at: None for never.
        uses: How often it was recalled.
        length: Of its text, in code points.
    """

    id: UUID
    pinned: bool
    expires_at: datetime | None
    priority: int
    importance: float
    uses: int
    length: int
    created_at: datetime
    scene: tuple[str, ...]


def by_rank(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The one that stays first: the pinned, then the one that lives longest, then by priority, importance, uses.

    Where all of that is equal: the longest text, the latest, the greatest id.
    """
    return sorted(
        candidates,
        key=lambda its: (
            its.pinned,
            its.expires_at is None,
            its.expires_at.timestamp() if its.expires_at else 0.0,
            its.priority,
            its.importance,
            its.uses,
            its.length,
            its.created_at,
            its.id,
        ),
        reverse=True,
    )


def fitting(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The first with as many of the others as it can stand for, in their order.

    A pinned one changes no field, so that it stands for those alone that have no scene that it has not. Any other takes
    their scenes, 32 in all: what would be one too many stays by itself.
    """
    first, *rest = ranked
    scenes, most = set(first.scene), len(set(first.scene)) if first.pinned else SCENES
    taken = [first]
    for candidate in rest:
        union = scenes.union(candidate.scene)
        if not candidate.pinned and len(union) <= max(most, len(scenes)):
            scenes = union
            taken.append(candidate)
    return taken


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A memory with all that it stands for already.

    Attributes:
        vectors: Of the chunks of each of these memories, its own among them: arrays of shape (chunks, dim).
        earliest: Of the given times when they happened; None where no time was given.
        latest: See there.
    """

    pinned: bool
    vectors: Sequence[FloatArray]
    earliest: datetime | None
    latest: datetime | None


def similarities(items: Sequence[Item]) -> FloatArray:
    """How alike each two items are, in the least alike of their memories: shape (items, items).

    Of two memories every chunk has to have its like in the other one: the least of the cosines of a chunk with the
    nearest chunk of the other, both ways. Two pinned ones, and what happened too far apart, are never alike.
    """
    memories = [vectors for item in items for vectors in item.vectors]
    chunks = np.concatenate(memories)
    of_memory = _starts([len(vectors) for vectors in memories])
    of_item = _starts([len(item.vectors) for item in items])
    owner = np.repeat(np.arange(len(items)), [sum(map(len, item.vectors)) for item in items])
    least = np.full((len(items), len(items)), np.inf, np.float32)
    for start in range(0, len(chunks), _BLOCK):
        cosines = chunks[start : start + _BLOCK] @ chunks.T
        nearest = np.maximum.reduceat(cosines, of_memory, axis=1)
        np.minimum.at(least, owner[start : start + _BLOCK], np.minimum.reduceat(nearest, of_item, axis=1))
    both = np.round(np.minimum(least, least.T), _DECIMALS).astype(np.float32)
    both[_kept_apart(items)] = _APART
    return both


def _kept_apart(items: Sequence[Item]) -> npt.NDArray[np.bool_]:
    pinned = np.array([item.pinned for item in items])
    earliest = np.array([item.earliest.timestamp() if item.earliest else np.nan for item in items])
    latest = np.array([item.latest.timestamp() if item.latest else np.nan for item in items])
    span = np.maximum.outer(latest, latest) - np.minimum.outer(earliest, earliest)  # nan where one has no time
    return np.logical_and.outer(pinned, pinned) | (span > MAX_APART.total_seconds())


def _starts(lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64)


def clusters(similarity: FloatArray, threshold: float) -> list[list[int]]:
    """Join by complete linkage: no two in a cluster are less alike than `threshold`, and no two clusters could be one.

    The two clusters whose least alike members are most alike are joined first (Sorensen 1948; the update of a row after
    a join is the minimum, Lance and Williams 1967). Among equals those of the lowest numbers are: sort by id, and the
    order in which things were found counts for nothing.

    Args:
        similarity: Symmetric, shape (n, n).
        threshold: Least similarity within a cluster.

    Returns:
        Numbers of those that are together, in order; what is alone is left out.
    """
    count = len(similarity)
    if count < 2:
        return []
    near = np.where(similarity >= threshold - 0.5 * 10**-_DECIMALS, similarity, _APART).astype(np.float32)
    np.fill_diagonal(near, _APART)
    members = [[n] for n in range(count)]
    place = near.argmax(axis=1)
    best = near[np.arange(count), place]
    while best[first := int(best.argmax())] > _APART:
        second = int(place[first])
        members[first] += members[second]
        members[second] = []
        joined = np.minimum(near[first], near[second])
        near[first], near[:, first] = joined, joined
        near[second], near[:, second] = _APART, _APART
        best[second] = _APART
        # Who was nearest to one of the two looks again, unless the two together are as near.
        stale = np.flatnonzero((place == first) | (place == second))
        place[stale] = first
        lost = stale[near[stale, first] < best[stale]]
        lost = np.union1d(lost, [first])
        place[lost] = near[lost].argmax(axis=1)
        best[lost] = near[lost, place[lost]]
    return [sorted(together) for together in members if len(together) > 1]

"""How long a text is for a language model, without asking one: the two counters that a budget can be held by.

Both add up over lines: texts joined by a line feed never come to more than what each comes to, and one for the feed.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]

Counter = Literal["estimate", "bytes"]

_WIDE: Final = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7A3))
"""Kana, ideograms and syllables of Hangul."""

_LETTERS: Final = 4
_HALVES: Final = 3
"""Half tokens that an ideogram, a kana or a syllable of Hangul counts for."""


def estimate(text: str) -> int:
    """Tokens of a text, about; rather too many than too few.

    A word of Latin letters counts for one token in four letters, begun ones whole, and so does each part of a word in
    camel case. A space before such a word counts for nothing; every other space, figure and sign of ASCII for one. Two
    ideograms, kana or syllables of Hangul count for three. Whatever else there is counts for one less than it has bytes
    in UTF-8.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    upper = (codes >= ord("A")) & (codes <= ord("Z"))
    lower = (codes >= ord("a")) & (codes <= ord("z"))
    letter = upper | lower
    free = (codes == ord(" ")) & _next(letter)
    wide = np.zeros(codes.size, dtype=np.bool_)
    for first, last in _WIDE:
        wide |= (codes >= first) & (codes <= last)
    ascii_ = (codes < 0x80) & ~letter & ~free
    # Bytes in UTF-8 less one: 1, 2 or 3.
    other = np.where((codes >= 0x80) & ~wide, 1 + (codes >= 0x800) + (codes >= 0x10000), 0)
    tokens = int(_words(upper, lower).sum()) + int(ascii_.sum()) + int(other.sum())
    return -(-(2 * tokens + _HALVES * int(wide.sum())) // 2)


def _words(upper: Flags, lower: Flags) -> npt.NDArray[np.int64]:
    """What each word, or part of a word in camel case, counts for. One begins at a capital before or after a small."""
    letter = upper | lower
    before = _before(letter)
    begins = letter & (~before | (upper & (_before(lower) | _next(lower))))
    starts = np.flatnonzero(begins)
    # A word ends where the next begins, or where letters do.
    ends = np.flatnonzero(letter & (~_next(letter) | _next(begins)))
    return -(-(ends - starts + 1) // _LETTERS)


def _next(flags: Flags) -> Flags:
    """Of each place, what is said of the one after it."""
    return np.append(flags[1:], False) if flags.size else flags


def _before(flags: Flags) -> Flags:
    """Of each place, what is said of the one before it."""
    return np.concatenate(([False], flags[:-1])) if flags.size else flags


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8: no tokenizer that works on bytes makes more tokens of it."""
    return len(text.encode())


def at_least(text: str) -> int:
    """What either counter says of a text at the least, told from its length alone."""
    return -(-len(text) // (_LETTERS + 1))


COUNTERS: Final[Mapping[Counter, Callable[[str], int]]] = {"estimate": estimate, "bytes": utf8_bytes}

"""How long a text is for a language model, without asking one: the two counters that a budget can be held by.

Both add up over lines: texts joined by a line feed never come to more than what each comes to, and one for the feed.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

Counter = Literal["estimate", "bytes"]

_PIECE: Final = re.compile(
    r"(?P<word>[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+)|(?P<free> (?=[A-Za-z]))"
    r"|(?P<wide>[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3])|(?P<ascii>[\x00-\x7f])|(?P<other>.)",
    re.DOTALL,
)
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
    halves = 0
    for piece in _PIECE.finditer(text):
        match piece.lastgroup:
            case "word":
                halves += 2 * -(-len(piece[0]) // _LETTERS)
            case "wide":
                halves += _HALVES
            case "ascii":
                halves += 2
            case "other":
                halves += 2 * (len(piece[0].encode("utf-8", "surrogatepass")) - 1)
            case _:
                pass
    return -(-halves // 2)


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8: no tokenizer that works on bytes makes more tokens of it."""
    return len(text.encode())


def at_least(text: str) -> int:
    """What either counter says of a text at the least, told from its length alone."""
    return -(-len(text) // (_LETTERS + 1))


COUNTERS: Final[Mapping[Counter, Callable[[str], int]]] = {"estimate": estimate, "bytes": utf8_bytes}

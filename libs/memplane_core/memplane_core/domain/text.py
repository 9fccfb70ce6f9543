"""Text as the lexical arm sees it: the same tokens for a memory and for a query, in English and in Chinese."""

import hashlib
import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Protocol, cast

import Stemmer

TERM_BYTES: Final = 4
"""Length of a term: what is kept of a token. Two tokens share one with a chance of 1 in 4 thousand million."""

_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PIECE: Final = re.compile(
    rf"(?P<cjk>[{_CJK}]+)"
    rf"|(?P<code>(?:[^\W_{_CJK}]+[-_./:#])+[^\W_{_CJK}]+)"
    rf"|(?P<word>[^\W_{_CJK}]+)"
)
_CJK_RUN: Final = re.compile(rf"[{_CJK}]+")
_SEPARATOR: Final = re.compile(r"[-_./:#]")
_STOP: Final = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this"  # noqa: SIM905
    " to was will with".split()
)
_LONGEST: Final = 64
"""Code points of the longest token; a longer run is noise and is cut there."""

_local = threading.local()


def tokens(text: str) -> list[str]:
    """Tokens of `text` in order, repeats kept, none with white space in it.

    Case, width and accents are folded. English words lose their endings (Snowball) and the commonest are dropped.
    Chinese, Japanese and Korean ideograms become overlapping pairs. A code that holds a digit, like `ORD-7781`, stays
    whole.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return [token[:_LONGEST] for match in _PIECE.finditer(folded) for token in _tokens_of(match)]


def terms(text: str) -> bytes:
    """The tokens of `text` as packed terms, `TERM_BYTES` each, in order, repeats kept: equal tokens, equal terms.

    Terms are what stores keep and compare: short, all of one length, and opaque.
    """
    return b"".join(map(term, tokens(text)))


@lru_cache(maxsize=65_536)
def term(token: str) -> bytes:
    """One token as a term: the first bytes of its MD5, which Postgres can compute as well."""
    return hashlib.md5(token.encode(), usedforsecurity=False).digest()[:TERM_BYTES]


def mostly_cjk(text: str) -> bool:
    """Whether at least half of a text's letters are Chinese or Japanese ones."""
    ideograms = sum(map(len, _CJK_RUN.findall(text)))
    return ideograms > 0 and 2 * ideograms >= sum(character.isalpha() for character in text)


def _tokens_of(match: re.Match[str]) -> Iterator[str]:
    piece = match.group()
    if match.lastgroup == "cjk":
        yield from _pairs(piece)
    elif match.lastgroup == "code" and any(character.isdigit() for character in piece):
        yield piece
    else:
        for part in _SEPARATOR.split(piece):
            yield from _word(part)


def _pairs(run: str) -> list[str]:
    return [run[n : n + 2] for n in range(len(run) - 1)] or [run]


def _word(word: str) -> Iterator[str]:
    plain = _without_accents(word)
    if plain and plain not in _STOP:
        yield _stemmer().stemWord(plain)


def _without_accents(word: str) -> str:
    """Latin letters lose their marks; in other scripts a mark makes another letter."""
    if word.isascii():
        return word
    kept: list[str] = []
    for character in unicodedata.normalize("NFD", word):
        if not (unicodedata.combining(character) and kept and kept[-1].isascii()):
            kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


class _Stemmer(Protocol):
    """What is used of PyStemmer, which has no types."""

    def stemWord(self, word: str) -> str:  # noqa: N802 - the library's name
        ...


def _stemmer() -> _Stemmer:
    """A stemmer of this thread's own: its cache is not safe to share."""
    found: _Stemmer | None = getattr(_local, "stemmer", None)
    if found is None:
        found = cast("_Stemmer", Stemmer.Stemmer("english"))
        _local.stemmer = found
    return found

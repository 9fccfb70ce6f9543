"""Likeness by words: BM25 over a pool of texts that are given as packed terms."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from memplane_core.domain.text import TERM_BYTES, terms

Floats = npt.NDArray[np.float64]
Terms = npt.NDArray[np.uint32]

K1: Final = 0.9
B: Final = 0.4
"""BM25's saturation and length normalisation (Robertson and Zaragoza 2009); on short texts both hardly matter."""

RARITY: Final = 1.6
"""Exponent of a word's inverse document frequency: above 1, what is rare in the pool counts more than in plain BM25."""

EXPECTED_WORDS: Final = 8
EXPECTED_SHARE: Final = 0.2
"""The pool's best counts in full from this share of the most that the query's eight rarest words could give. Below it,
few words are shared at all (say, between two languages), and the best of them proves little."""

MOST_WORDS: Final = 256
"""Distinct words of a query that count; a longer one is a text of its own, and its first words say what it is about."""

_ASKING: Final = (
    "who what when where which why how do does did has have had can could would should may might i you he she her him "
    "his my me your our we us them been being am were so about from"
)
_TELLING_WHEN: Final = (
    "yesterday last ago next week weekend month year "
    "昨天 前天 明天 后天 今早 今晚 昨晚 上周 下周 本周 周末 上月 下月 上个 下个 去年 今年 明年 前年 年前 天前 周前 月前"
)


def unpacked(packed: bytes) -> Terms:
    """Packed terms as numbers."""
    return np.frombuffer(packed, dtype="<u4")


def _vocabulary(words: str) -> Terms:
    return np.unique(unpacked(b"".join(terms(word) for word in words.split())))


ASKING: Final = frozenset(_vocabulary(_ASKING).tolist())
"""Words that make a question and say nothing of its answer: they do not count in a query that has others."""

TELLING_WHEN: Final = _vocabulary(_TELLING_WHEN)
"""Words by which a text says when something happened, in both languages; dates and months are in every head."""


class Likeness(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool fares by words, arrays in the pool's order.

    Attributes:
        scores: BM25 of each text, scaled: 1 for the best, less where even the best shares little.
        share: What part of the query's words a text has, each weighed by its rarity; 0..1.
        lengths: Terms of each text.
        tells_when: 1 where a text says when something happened, else 0.
    """

    scores: Floats
    share: Floats
    lengths: Floats
    tells_when: Floats


def query_words(packed: bytes) -> bytes:
    """What counts of a query's packed terms: distinct ones in their order, at most `MOST_WORDS`.

    Words that make a question are left out where it has others.
    """
    distinct = list(dict.fromkeys(unpacked(packed).tolist()))
    telling = [word for word in distinct if word not in ASKING]
    return np.array((telling or distinct)[:MOST_WORDS], dtype="<u4").tobytes()


def likeness(query: bytes, texts: Sequence[bytes]) -> Likeness:
    """Score texts against a query.

    Document frequencies and the mean length are those of `texts`: in a pool of likely answers they tell words apart
    better than a whole tenant's do, and there is no table of them to keep.

    Args:
        query: Its packed words (`query_words`); empty where words do not count.
        texts: Packed terms of each text, at least one text.
    """
    count = len(texts)
    lengths = np.array([len(text) for text in texts]) // TERM_BYTES
    words = np.unique(unpacked(query))
    counts, tells_when = _counted(texts, lengths, words)
    if words.size == 0:
        none = np.zeros(count)
        return Likeness(scores=none, share=none, lengths=lengths.astype(np.float64), tells_when=tells_when)
    frequency = (counts > 0).sum(axis=0)
    weight = np.log1p((count - frequency + 0.5) / (frequency + 0.5)) ** RARITY
    norm = K1 * (1 - B + B * lengths / max(1.0, lengths.mean()))
    scores = (counts * ((K1 + 1) / (counts + norm[:, None]))) @ weight
    most = (K1 + 1) * float(np.sort(weight)[-EXPECTED_WORDS:].sum())
    return Likeness(
        scores=scores / max(float(scores.max()), EXPECTED_SHARE * most),
        share=np.minimum(1.0, (counts > 0) @ weight / weight.sum()),
        lengths=lengths.astype(np.float64),
        tells_when=tells_when,
    )


def _counted(texts: Sequence[bytes], lengths: npt.NDArray[np.int64], words: Terms) -> tuple[Floats, Floats]:
    """How often each text has each word, shape (texts, words); and 1 for each text that says when."""
    everything = unpacked(b"".join(texts))
    sought = np.zeros(1 << 16, dtype=np.bool_)  # most terms are none of those sought: half of their bits tell
    sought[words & 0xFFFF] = True
    sought[TELLING_WHEN & 0xFFFF] = True
    at = np.flatnonzero(sought[everything & 0xFFFF])
    found = everything[at]
    owner = np.searchsorted(np.cumsum(lengths), at, side="right")
    tells_when = np.zeros(len(texts))
    tells_when[owner[TELLING_WHEN[_place(TELLING_WHEN, found)] == found]] = 1.0
    if words.size == 0:
        return np.zeros((len(texts), 0)), tells_when
    place = _place(words, found)
    hit = words[place] == found
    counts = np.bincount(owner[hit] * words.size + place[hit], minlength=len(texts) * words.size)
    return counts.reshape(len(texts), words.size).astype(np.float64), tells_when


def _place(words: Terms, found: Terms) -> npt.NDArray[np.intp]:
    """Where each of `found` is among `words`, which are sorted, if it is one of them."""
    return np.minimum(np.searchsorted(words, found), words.size - 1)

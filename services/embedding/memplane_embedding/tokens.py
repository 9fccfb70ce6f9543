"""Texts to token windows that a model can take, without losing a code point."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from memplane_core.domain.embedding import Window
from memplane_embedding.models.manifest import ModelFolderError

TokenIds = npt.NDArray[np.int64]


class TokenWindow(msgspec.Struct, frozen=True):
    """A window of a text and the token ids of lead and window, special tokens included."""

    window: Window
    ids: TokenIds


class TextTokens(msgspec.Struct, frozen=True):
    """A text as a model takes it.

    Attributes:
        windows: Overlapping by about an eighth; together they cover every code point of the text.
        tokens: Length of the whole, counted once: special tokens and lead included, overlaps not.
    """

    windows: list[TokenWindow]
    tokens: int


class WindowTokenizer:
    """A model's own tokenizer. Safe to use from several threads.

    Args:
        path: Of its `tokenizer.json`.
        max_tokens: Longest window, special tokens and lead included.
    """

    def __init__(self, path: Path, *, max_tokens: int) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ModelFolderError(f"{str(path)!r}: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A text that spells out `[SEP]` means those letters.
        self._tokenizer.encode_special_tokens = True
        self._before, self._after = self._special_ids()
        self._room = max_tokens - len(self._before) - len(self._after)
        if self._room < 4:
            raise ModelFolderError(f"{str(path)!r}: {max_tokens} tokens leave no room for a text")

    def split(self, lead: str, text: str) -> TextTokens:
        """Token windows of `text`, each with `lead` before it; a lead is cut at half a window.

        Raises UnicodeEncodeError for a text with half of a surrogate pair.
        """
        whole = lead + text
        whole.encode()  # the tokenizer's own error for lone surrogates names no cause
        encoding = self._tokenizer.encode(whole, add_special_tokens=False)
        tokens = len(encoding.ids) + len(self._before) + len(self._after)
        if len(encoding.ids) <= self._room:
            return TextTokens([TokenWindow(Window(0, len(text)), self._with_specials(encoding.ids))], tokens)
        return TextTokens(self._windows(encoding, lead=len(lead), length=len(text)), tokens)

    def _windows(self, encoding: Encoding, *, lead: int, length: int) -> list[TokenWindow]:
        ids = encoding.ids
        spans = [(max(start - lead, 0), max(end - lead, 0)) for start, end in encoding.offsets]
        lead_tokens = next((n for n, (_, end) in enumerate(spans) if end > 0), len(ids))
        body_ids, body_spans = ids[lead_tokens:], spans[lead_tokens:]
        lead_ids = ids[: min(lead_tokens, self._room // 2)]
        size = self._room - len(lead_ids)
        ranges = token_ranges(len(body_ids), size=size, overlap=size // 8)
        return [
            TokenWindow(window, self._with_specials([*lead_ids, *body_ids[first:last]]))
            for window, (first, last) in zip(
                _text_windows(body_spans, ranges=ranges, length=length), ranges, strict=True
            )
        ]

    def _with_specials(self, ids: Sequence[int]) -> TokenIds:
        return np.array([*self._before, *ids, *self._after], np.int64)

    def _special_ids(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after a text."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        for at in range(len(full) - len(plain) + 1):
            if full[at : at + len(plain)] == plain:
                return full[:at], full[at + len(plain) :]
        return [], []


def token_ranges(count: int, *, size: int, overlap: int) -> list[tuple[int, int]]:
    """Ranges of `size` tokens that cover `count`, neighbours sharing `overlap`; the last is full and may share more."""
    if count <= size:
        return [(0, count)]
    step = size - overlap
    firsts = [*range(0, count - size, step), count - size]
    return [(first, first + size) for first in firsts]


def _text_windows(spans: Sequence[tuple[int, int]], *, ranges: Sequence[tuple[int, int]], length: int) -> list[Window]:
    """Code points of each token range; what lies between two tokens goes with the one before."""
    windows: list[Window] = []
    reached = 0
    for first, last in ranges:
        start = min(spans[first][0], reached) if spans else 0
        end = max(spans[last - 1][1], spans[last][0]) if last < len(spans) else length
        reached = max(start, end)
        windows.append(Window(start, reached))
    return windows

"""A memory's text as it can be found: by meaning in chunks, by words as a whole."""

import msgspec
import numpy as np

from memplane_core.domain.embedding import Window
from memplane_core.domain.index import FloatArray
from memplane_core.domain.ports import EmbeddedText
from memplane_core.domain.text import terms


class Chunk(msgspec.Struct, frozen=True):
    """A window of a memory's text.

    Attributes:
        n: Its number within the memory, from 0.
        window: Where it lies in the content.
        vector: Shape (dim,); None until the text has been embedded.
    """

    n: int
    window: Window
    vector: FloatArray | None


class FindableText(msgspec.Struct, frozen=True):
    """What a memory is found by.

    Attributes:
        terms: Of its head and content, packed (`domain.text.terms`).
        chunks: At least one.
    """

    terms: bytes
    chunks: list[Chunk]

    @property
    def embedded(self) -> bool:
        """Whether every chunk has its vector."""
        return all(chunk.vector is not None for chunk in self.chunks)


def findable(content: str, *, head: str, embedded: EmbeddedText | None) -> FindableText:
    """A text's words and chunks.

    Args:
        content: The memory's text.
        head: What goes before each window (`domain.memory.head_of`).
        embedded: Its windows and vectors, or None.
    """
    return FindableText(terms(head + content), chunks_of(content, embedded=embedded))


def chunks_of(content: str, *, embedded: EmbeddedText | None) -> list[Chunk]:
    """The chunks of a text; one without a vector where it has not been embedded."""
    if embedded is None or embedded.error is not None:
        return [Chunk(0, Window(0, len(content)), None)]
    return [
        Chunk(n, window, np.asarray(vector))
        for n, (window, vector) in enumerate(zip(embedded.windows, embedded.vectors, strict=True))
    ]

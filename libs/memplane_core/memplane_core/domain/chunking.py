"""A memory's text as chunks: what the index and the lexical arm hold of it."""

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
        terms: Of the head and the window, packed (`domain.text.terms`), for the lexical arm.
        vector: Shape (dim,); None until the text has been embedded.
    """

    n: int
    window: Window
    terms: bytes
    vector: FloatArray | None


def chunks_of(content: str, *, head: str, embedded: EmbeddedText | None) -> list[Chunk]:
    """The chunks of a text; one without a vector where it has not been embedded, so that words find it at once.

    Args:
        content: The memory's text.
        head: What goes before each window (`domain.memory.head_of`).
        embedded: Its windows and vectors, or None.
    """
    if embedded is None or embedded.error is not None:
        return [Chunk(0, Window(0, len(content)), terms(head + content), None)]
    return [
        Chunk(n, window, terms(head + content[window.start : window.end]), np.asarray(vector))
        for n, (window, vector) in enumerate(zip(embedded.windows, embedded.vectors, strict=True))
    ]

"""An embedder without a model: deterministic, in memory, good enough to tell related texts from unrelated ones."""

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from memplane_core.domain.embedding import EmbedItem, Lane, ModelProfile, ModelProfiles, Window
from memplane_core.domain.errors import EmbeddingUnavailable, NotFound, invalid
from memplane_core.domain.index import FloatArray
from memplane_core.domain.ports import EmbeddedText
from memplane_core.domain.tenancy import TenantId

MODEL: Final = "hash"
POISON: Final = "\N{SKULL AND CROSSBONES}"
"""A text that holds this cannot be embedded."""

_WORDS: Final = re.compile(r"[a-z0-9]+|[^\x00-\x7f]")


class HashEmbedder:
    """Bags of words hashed to directions: texts that share words are near each other, all others nearly orthogonal.

    Args:
        dim: Length of the vectors.
        window: Code points of a window; windows overlap by an eighth.
        models: Names that are served; the first is the default.

    Attributes:
        down: While True every call raises EmbeddingUnavailable.
        calls: Texts embedded so far.
    """

    def __init__(self, *, dim: int = 64, window: int = 2000, models: Sequence[str] = (MODEL,)) -> None:
        self.down = False
        self.calls = 0
        self._dim = dim
        self._window = window
        self._profiles = ModelProfiles(default=models[0], models=[_profile(name, dim, window) for name in models])

    async def embed_query(self, tenant: TenantId, text: str, *, model: str, timeout_s: float) -> FloatArray:
        """A vector of shape (dim,)."""
        del tenant, timeout_s
        await self.profile(model)
        self.calls += 1
        if (fault := _fault(text)) is not None:
            raise invalid("/query", fault)
        return self._vector(text)

    async def embed_passages(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, model: str, lane: Lane, timeout_s: float
    ) -> list[EmbeddedText]:
        """Windows and vectors for each item, in order; a poison text has an error instead."""
        del tenant, lane, timeout_s
        await self.profile(model)
        self.calls += len(items)
        return [self._passage(item) for item in items]

    async def profiles(self) -> ModelProfiles:
        """The models served."""
        if self.down:
            raise EmbeddingUnavailable("the embedder is switched off", retry_after=1)
        return self._profiles

    async def profile(self, model: str) -> ModelProfile:
        """One model's profile."""
        for found in (await self.profiles()).models:
            if found.name == model:
                return found
        raise NotFound(f"no model is called {model!r}")

    def _passage(self, item: EmbedItem) -> EmbeddedText:
        if (fault := _fault(item.text)) is not None:
            return EmbeddedText([], np.empty((0, self._dim), np.float32), fault)
        step = self._window - self._window // 8
        count = max(1, math.ceil((len(item.text) - self._window) / step) + 1)
        windows = [Window(n * step, min(n * step + self._window, len(item.text))) for n in range(count)]
        vectors = [self._vector(item.head + item.text[window.start : window.end]) for window in windows]
        return EmbeddedText(windows, np.stack(vectors))

    def _vector(self, text: str) -> FloatArray:
        total = np.zeros(self._dim, np.float32)
        for word in _WORDS.findall(text.lower()) or [text]:
            seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
            total += np.random.default_rng(seed).standard_normal(self._dim, np.float32)
        return total / np.float32(np.linalg.norm(total))


def _profile(name: str, dim: int, window: int) -> ModelProfile:
    return ModelProfile(
        name=name, dim=dim, max_tokens=window, span=0.6, anchor_low=0.1, anchor_high=0.8, multilingual=True
    )


def _fault(text: str) -> str | None:
    if not text:
        return "is empty; there is nothing to embed"
    if POISON in text:
        return "is poison, as the test asked for"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no text"
    return None

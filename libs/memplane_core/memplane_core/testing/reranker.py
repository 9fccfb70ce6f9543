"""A reranker without a model: a text's score is the share of the query's words that it holds."""

from collections.abc import Sequence

import numpy as np

from memplane_core.contracts.embedding import MAX_RERANK_TEXTS
from memplane_core.domain.errors import EmbeddingUnavailable, NotFound, invalid
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.text import tokens


class WordReranker:
    """Deterministic, in memory, and with the bounds of the real one.

    Attributes:
        off: While True every call raises NotFound, as where no reranker is switched on.
        down: While True every call raises EmbeddingUnavailable.
        calls: Texts scored so far.
    """

    def __init__(self) -> None:
        self.off = False
        self.down = False
        self.calls = 0

    async def rerank(self, tenant: TenantId, query: str, texts: Sequence[str], *, timeout_s: float) -> FloatArray:
        """The share of the query's distinct words in each text, shape (len(texts),); 0 for a query without words."""
        del tenant, timeout_s
        if self.off:
            raise NotFound("no reranker is switched on")
        if self.down:
            raise EmbeddingUnavailable("the reranker is switched off", retry_after=1)
        if not query:
            raise invalid("/query", "is empty; there is nothing to compare with")
        if len(texts) > MAX_RERANK_TEXTS:
            raise invalid("/texts", f"has {len(texts)} texts; at most {MAX_RERANK_TEXTS} are taken at once")
        self.calls += len(texts)
        words = set(tokens(query))
        return np.array([len(words & set(tokens(text))) / max(len(words), 1) for text in texts], np.float32)

"""The reranker that an installation has switched on, if any."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from memplane_core.contracts.embedding import MAX_RERANK_TEXTS
from memplane_core.domain.errors import EmbeddingUnavailable, NotFound, invalid
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_embedding.cross_encoder import CrossEncoder
from memplane_embedding.metrics import RERANKED
from memplane_embedding.models.manifest import ModelFolderError
from memplane_embedding.pool import WorkerPool


class Reranking:
    """Scores texts against a query by a cross-encoder; each pair is a job of the pool's `rerank` lane.

    Args:
        name: The reranker's; "" where none is switched on.
        folder: The reranker's; None where none is switched on.
        pool: Computes.
        max_text_bytes: Longest query or text, in UTF-8.
    """

    def __init__(self, name: str, folder: Path | None, pool: WorkerPool, *, max_text_bytes: int) -> None:
        self._name = name
        self._folder = folder
        self._pool = pool
        self._max_text_bytes = max_text_bytes
        self._model: CrossEncoder | None = None

    @property
    def name(self) -> str:
        """Of the reranker. Raises NotFound where none is switched on."""
        if self._folder is None:
            raise NotFound("no reranker is switched on here; MEMPLANE_EMBEDDING__RERANKER names the one to use")
        return self._name

    async def start(self) -> None:
        """Read the model into memory, where one is switched on. Raises EmbeddingUnavailable."""
        if self._folder is None:
            return
        try:
            self._model = await asyncio.to_thread(CrossEncoder, self._folder)
        except ModelFolderError as error:
            raise EmbeddingUnavailable(f"the reranker cannot be loaded: {error}", retry_after=30) from error

    async def scores(self, tenant: TenantId, query: str, texts: Sequence[str]) -> FloatArray:
        """How well each text answers the query, 0 to 1, shape (len(texts),). Cancelling it takes back what waits.

        Raises:
            NotFound: No reranker is switched on.
            InvalidRequest: Nothing is asked, or a text is too long, or there are too many.
            EmbeddingUnavailable: The model is not loaded yet, or too many pairs are waiting.
        """
        name = self.name
        self._check(query, texts)
        model = self._model
        if model is None:
            raise EmbeddingUnavailable("the reranker is not loaded yet", retry_after=1)
        RERANKED.labels(name).inc(len(texts))
        jobs = self._pool.submit(tenant, "rerank", [partial(model.score, query, text) for text in texts])
        try:
            return np.array(await asyncio.gather(*jobs), np.float32)
        finally:
            for job in jobs:  # where one has failed, the others are of no use
                job.cancel()

    def _check(self, query: str, texts: Sequence[str]) -> None:
        if not query:
            raise invalid("/query", "is empty; there is nothing to compare with")
        if len(texts) > MAX_RERANK_TEXTS:
            raise invalid("/texts", f"has {len(texts)} texts; at most {MAX_RERANK_TEXTS} are taken at once")
        for pointer, text in (("/query", query), *((f"/texts/{n}", text) for n, text in enumerate(texts))):
            if (size := len(text.encode())) > self._max_text_bytes:
                raise invalid(pointer, f"has {size} bytes; at most {self._max_text_bytes} are taken")

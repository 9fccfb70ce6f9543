"""The reranker of other tests behaves as the port says."""

from uuid import uuid4

import pytest

from memplane_core.contracts.embedding import MAX_RERANK_TEXTS
from memplane_core.domain.errors import EmbeddingUnavailable, InvalidRequest, NotFound
from memplane_core.domain.ports import Reranker
from memplane_core.domain.tenancy import TenantId
from memplane_core.testing.reranker import WordReranker

pytestmark = pytest.mark.anyio

T = TenantId(uuid4())


async def test_score_is_the_share_of_the_querys_words() -> None:
    reranker: Reranker = WordReranker()
    scores = await reranker.rerank(T, "Mia's red car", ["The cars of Mia", "two eggs", "a red car, Mia's"], timeout_s=1)
    assert scores.dtype == "float32"
    assert scores.tolist() == pytest.approx([2 / 4, 0, 1], abs=1e-6)


async def test_no_texts_have_no_scores() -> None:
    assert (await WordReranker().rerank(T, "car", [], timeout_s=1)).shape == (0,)


async def test_bounds_and_outages_are_the_real_ones() -> None:
    reranker = WordReranker()
    with pytest.raises(InvalidRequest, match="/texts"):
        await reranker.rerank(T, "car", ["x"] * (MAX_RERANK_TEXTS + 1), timeout_s=1)
    with pytest.raises(InvalidRequest, match="/query"):
        await reranker.rerank(T, "", ["x"], timeout_s=1)
    reranker.down = True
    with pytest.raises(EmbeddingUnavailable):
        await reranker.rerank(T, "car", ["x"], timeout_s=1)
    reranker.off = True
    with pytest.raises(NotFound):
        await reranker.rerank(T, "car", ["x"], timeout_s=1)
    assert reranker.calls == 0

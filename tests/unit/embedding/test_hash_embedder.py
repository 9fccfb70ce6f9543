"""The embedder of other tests behaves as the port says."""

from itertools import pairwise
from uuid import uuid4

import numpy as np
import pytest

from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.errors import EmbeddingUnavailable, InvalidRequest, NotFound
from memplane_core.domain.ports import Embedder
from memplane_core.domain.tenancy import TenantId
from memplane_core.testing.embedder import MODEL, POISON, HashEmbedder

pytestmark = pytest.mark.anyio

T = TenantId(uuid4())


async def test_shared_words_bring_texts_together() -> None:
    embedder: Embedder = HashEmbedder()
    query = await embedder.embed_query(T, "where is the car", model=MODEL, timeout_s=1)
    near, far = await embedder.embed_passages(
        T, [EmbedItem("the car is here"), EmbedItem("two eggs and milk")], model=MODEL, lane="write", timeout_s=1
    )
    assert query.shape == (64,)
    assert np.linalg.norm(query) == pytest.approx(1)
    assert near.vectors[0] @ query > far.vectors[0] @ query + 0.3


async def test_long_text_has_windows_that_cover_it() -> None:
    text = "word " * 1000
    (found,) = await HashEmbedder(window=800).embed_passages(
        T, [EmbedItem(text)], model=MODEL, lane="bulk", timeout_s=1
    )
    assert found.windows[0].start == 0
    assert found.windows[-1].end == len(text)
    assert all(one.end > after.start for one, after in pairwise(found.windows))
    assert found.vectors.shape == (len(found.windows), 64)


async def test_poison_fails_alone() -> None:
    embedder = HashEmbedder()
    bad, empty, good = await embedder.embed_passages(
        T, [EmbedItem(POISON), EmbedItem(""), EmbedItem("good")], model=MODEL, lane="write", timeout_s=1
    )
    assert bad.error
    assert empty.error
    assert bad.vectors.shape == (0, 64)
    assert good.error is None
    with pytest.raises(InvalidRequest):
        await embedder.embed_query(T, POISON, model=MODEL, timeout_s=1)


async def test_switched_off_answers_nothing_and_unknown_model_is_named() -> None:
    embedder = HashEmbedder()
    with pytest.raises(NotFound, match="'other'"):
        await embedder.profile("other")
    embedder.down = True
    with pytest.raises(EmbeddingUnavailable):
        await embedder.embed_query(T, "x", model=MODEL, timeout_s=1)
    with pytest.raises(EmbeddingUnavailable):
        await embedder.profiles()

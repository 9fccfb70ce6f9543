"""A second reading of the best candidates by the installation's reranker."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from memplane_core.domain.memory import Memory, head_of
from memplane_core.domain.ports import Reranker
from memplane_core.domain.ranking import Ranked
from memplane_retrieval.query import Query

STEP: Final = 0.11
"""What one logit of the reranker moves a memory by, as a part of the way from the best match reread to the worst."""

_LONGEST: Final = 1000
"""Code points of a text that are read: its cost grows with them."""

_SURE: Final = 1e-6
"""Opinions are taken to be this far from 0 and from 1, so that none alone decides."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A memory in its place.

    Attributes:
        score: What orders the results.
        rerank: The reranker's opinion, 0..1, where it was asked.
    """

    ranked: Ranked
    memory: Memory
    score: float
    rerank: float | None = None


class Reranking:
    """Puts the best of a ranking in a better order."""

    def __init__(self, reranker: Reranker, *, timeout_s: float) -> None:
        self._reranker = reranker
        self._timeout_s = timeout_s

    async def reordered(self, query: Query, places: Sequence[Placed]) -> list[Placed]:
        """The same places in the order of their scores, each moved by the logit of the reranker's opinion.

        Args:
            query: What was asked.
            places: At least one, and at most as many as the reranker takes at once.

        Raises:
            EmbeddingUnavailable: It did not answer in time.
            NotFound: This installation has none.
        """
        texts = [head_of(its.actor, its.occurred_at) + its.content[:_LONGEST] for its in (p.memory for p in places)]
        opinions = await self._reranker.rerank(query.tenant, query.question.text, texts, timeout_s=self._timeout_s)
        matches = [place.ranked.match for place in places]
        step = STEP * (max(matches) - min(matches)) * query.weights.match / query.weights.total
        reread = [
            Placed(ranked=place.ranked, memory=place.memory, score=place.score + step * _logit(opinion), rerank=opinion)
            for place, opinion in zip(places, map(float, opinions), strict=True)
        ]
        return sorted(reread, key=lambda place: place.score, reverse=True)


def behind(first: Sequence[Placed], rest: Sequence[Placed]) -> list[Placed]:
    """Both, the rest with scores no higher than the last of the first: it was not read, and keeps its order."""
    last = min((place.score for place in first), default=0.0)
    return [*first, *(msgspec.structs.replace(place, score=min(place.score, last)) for place in rest)]


def _logit(opinion: float) -> float:
    sure = min(1 - _SURE, max(_SURE, opinion))
    return math.log(sure / (1 - sure))

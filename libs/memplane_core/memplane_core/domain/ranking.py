"""How candidates become a ranking. Pure: the clock and the weights are arguments.

The score is DESIGN section 6's: a weighted mean of *match* (likeness to the query, relative to the pool), *recency*,
*importance* and *priority*. *Relevance* is another number, absolute: the best of nonsense stays low.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.embedding import ModelProfile

Weight = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Origin = Literal["index", "fresh", "scan"]

DECAY_RATE: Final = 0.01
"""Part of its recency that a memory loses in an hour."""

_HOUR_S: Final = 3600.0


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each part counts in a score; they are divided by their sum."""

    match: Weight = 0.75
    recency: Weight = 0.10
    importance: Weight = 0.10
    priority: Weight = 0.05

    @property
    def total(self) -> float:
        """Their sum."""
        return self.match + self.recency + self.importance + self.priority


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that may answer the query, checked against Postgres.

    Attributes:
        cosine: Of the query and the memory's best chunk, -1..1.
        origin: Where it was found.
    """

    memory_id: UUID
    cosine: float
    origin: Origin
    importance: float
    priority: int
    last_accessed_at: datetime


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's place, and the parts of its score, each 0..1 before its weight."""

    candidate: Candidate
    score: float
    relevance: float
    dense: float
    match: float
    recency: float
    priority: float


def rank(
    pool: Sequence[Candidate], *, now: datetime, weights: Weights, model: ModelProfile, decay_rate: float = DECAY_RATE
) -> list[Ranked]:
    """The pool, best first; equal scores by cosine, then the newer memory.

    Args:
        pool: Distinct memories.
        now: The clock that recency is measured by.
        weights: At least one above 0.
        model: Whose cosines these are: they are read by its span and its anchors.
        decay_rate: Part of its recency that a memory loses in an hour, 0..1.
    """
    best = max((candidate.cosine for candidate in pool), default=0.0)
    ranked = [_place(c, best=best, now=now, weights=weights, model=model, decay_rate=decay_rate) for c in pool]
    ranked.sort(key=lambda r: (r.score, r.candidate.cosine, r.candidate.memory_id), reverse=True)
    return ranked


def _place(
    candidate: Candidate, *, best: float, now: datetime, weights: Weights, model: ModelProfile, decay_rate: float
) -> Ranked:
    dense = dense_match(candidate.cosine, best=best, span=model.span)
    match = dense
    recency = recency_of(candidate.last_accessed_at, now=now, decay_rate=decay_rate)
    priority = (candidate.priority - 1) / 4
    score = (
        weights.match * match
        + weights.recency * recency
        + weights.importance * candidate.importance
        + weights.priority * priority
    ) / weights.total
    return Ranked(
        candidate=candidate,
        score=score,
        relevance=relevance_of(candidate.cosine, model=model),
        dense=dense,
        match=match,
        recency=recency,
        priority=priority,
    )


def dense_match(cosine: float, *, best: float, span: float) -> float:
    """1 for the pool's best cosine, falling to 0 at `span` below it."""
    return min(1.0, max(0.0, 1.0 - (best - cosine) / span))


def recency_of(last_accessed_at: datetime, *, now: datetime, decay_rate: float) -> float:
    """`(1 - decay_rate) ** hours`, with no hours before 0: a memory touched after `now` is as recent as can be."""
    hours = max(0.0, (now - last_accessed_at).total_seconds() / _HOUR_S)
    return (1.0 - decay_rate) ** hours


def relevance_of(cosine: float, *, model: ModelProfile) -> float:
    """The cosine between the model's anchors: 0 for an unrelated pair, 1 for a sure match."""
    return min(1.0, max(0.0, (cosine - model.anchor_low) / (model.anchor_high - model.anchor_low)))

import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.ranking import Candidate, Weights, rank, recency_of, relevance_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = ModelProfile(name="m", dim=2, max_tokens=8, span=0.4, anchor_low=0.5, anchor_high=0.9, multilingual=False)


def _candidate(
    n: int, *, cosine: float = 0.5, importance: float = 0.5, priority: int = 3, hours: float = 0.0
) -> Candidate:
    return Candidate(
        memory_id=UUID(int=n),
        cosine=cosine,
        origin="index",
        importance=importance,
        priority=priority,
        last_accessed_at=NOW - timedelta(hours=hours),
    )


def test_the_score_is_the_published_formula() -> None:
    pool = [
        _candidate(1, cosine=0.9, importance=0.2, priority=5, hours=10),
        _candidate(2, cosine=0.7, importance=1.0, priority=1, hours=0),
    ]

    first, second = rank(pool, now=NOW, weights=Weights(), model=MODEL)

    assert first.candidate.memory_id == UUID(int=1)
    assert first.score == pytest.approx(0.75 * 1.0 + 0.10 * 0.99**10 + 0.10 * 0.2 + 0.05 * 1.0, abs=1e-12)
    assert second.score == pytest.approx(0.75 * 0.5 + 0.10 * 1.0 + 0.10 * 1.0 + 0.05 * 0.0, abs=1e-12)
    assert (first.dense, second.dense) == (1.0, pytest.approx(0.5))


def test_an_exact_match_is_not_buried_by_something_merely_recent() -> None:
    old = _candidate(1, cosine=0.9, hours=24 * 365)
    fresh = _candidate(2, cosine=0.7, hours=0, importance=0.9, priority=5)

    assert rank([fresh, old], now=NOW, weights=Weights(), model=MODEL)[0].candidate == old


def test_a_touch_after_the_ranking_clock_counts_as_now() -> None:
    assert recency_of(NOW + timedelta(days=3), now=NOW, decay_rate=0.01) == 1.0


@pytest.mark.parametrize(("cosine", "relevance"), [(0.2, 0.0), (0.5, 0.0), (0.7, 0.5), (0.9, 1.0), (1.0, 1.0)])
def test_relevance_is_the_cosine_between_the_anchors(cosine: float, relevance: float) -> None:
    assert relevance_of(cosine, model=MODEL) == pytest.approx(relevance)


def test_the_best_of_nonsense_matches_best_and_stays_irrelevant() -> None:
    [only] = rank([_candidate(1, cosine=0.3)], now=NOW, weights=Weights(), model=MODEL)
    assert (only.match, only.relevance) == (1.0, 0.0)


@given(
    st.lists(
        st.tuples(st.floats(-1, 1), st.floats(0, 1), st.integers(1, 5), st.floats(0, 10_000)), min_size=1, max_size=30
    ),
    st.tuples(*[st.floats(0, 1000)] * 4).filter(lambda weights: sum(weights) > 0),
)
def test_scores_are_between_0_and_1_sorted_and_whole(
    rows: list[tuple[float, float, int, float]], given_weights: tuple[float, float, float, float]
) -> None:
    match, recency, importance, priority = given_weights
    weights = Weights(match=match, recency=recency, importance=importance, priority=priority)
    pool = [
        _candidate(n, cosine=cosine, importance=worth, priority=level, hours=hours)
        for n, (cosine, worth, level, hours) in enumerate(rows)
    ]

    ranked = rank(pool, now=NOW, weights=weights, model=MODEL)

    assert sorted((r.candidate for r in ranked), key=lambda c: c.memory_id) == pool
    assert all(-1e-9 <= r.score <= 1 + 1e-9 for r in ranked)
    assert all(a.score >= b.score for a, b in itertools.pairwise(ranked))

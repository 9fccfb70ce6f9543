"""What counts as the same, what is joined, and who stays."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.index import FloatArray
from memplane_core.domain.merging import Candidate, Item, by_rank, clusters, fitting, said, similarities, threshold_of

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


class TestWhatIsSaid:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("I like tea.", "i LIKE tea!"),
            ("So, I don't like tea", "I do not like tea"),
            ("We've  booked a cabin", "we booked the cabin :)"),
            ("Ｔｅａ at five", "tea at five"),
            ("客户对花生过敏。", "客户对花生过敏呢"),
            ("cost: $5", "cost $5"),
        ],
    )
    def test_is_the_same_whatever_its_case_marks_and_fillers(self, first: str, second: str) -> None:
        assert said(first, "words") == said(second, "words")

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("3 apples", "4 apples"),
            ("it is 5 degrees", "it is -5 degrees"),
            ("pay $5", "pay €5"),
            ("version 4.2", "version 42"),
            ("order ORD-7781", "order ORD-7787"),
            ("I like tea", "I don't like tea"),
            ("he can't come", "he can come"),
            ("Ana pays Ben 5", "Ben pays Ana 5"),
            ("tea is good", "tea is good?"),
            ("it was good 👍", "it was good 👎"),
            ("client list", "C++ client list"),
            ("she works there", "she worked there"),
            ("客户对花生过敏", "客户对花生不过敏"),
            ("早上六点", "早上九点"),
        ],
    )
    def test_is_another_thing_with_other_facts(self, first: str, second: str) -> None:
        assert said(first, "words") != said(second, "words")

    def test_is_numbers_and_denials_alone_where_only_facts_have_to_agree(self) -> None:
        assert said("three cups, 4 spoons, no forks", "facts") == said("No plates; 4 knives", "facts") == ("4", "no")
        assert said("4", "facts") != said("5", "facts")
        assert said("anything", "none") == said("else", "none")


def brute(similarity: FloatArray, threshold: float) -> list[list[int]]:
    """Complete linkage as it is told in books."""
    found = [[n] for n in range(len(similarity))]
    while True:
        best: tuple[float, int, int] | None = None
        for i, first in enumerate(found):
            for j, second in enumerate(found[i + 1 :], i + 1):
                least = min(float(similarity[a, b]) for a in first for b in second)
                if least >= threshold and (best is None or least > best[0]):
                    best = (least, i, j)
        if best is None:
            return sorted(sorted(its) for its in found if len(its) > 1)
        _, i, j = best
        found[i] += found.pop(j)


class TestJoining:
    @given(st.integers(0, 10_000), st.integers(2, 12), st.sampled_from([1, 4]))
    def test_is_complete_linkage(self, seed: int, count: int, decimals: int) -> None:
        made = np.random.default_rng(seed).random((count, count)).astype(np.float32)
        similarity = np.round((made + made.T) / 2, decimals).astype(np.float32)
        assert sorted(clusters(similarity, 0.55)) == brute(similarity, 0.55)

    def test_never_takes_two_that_are_only_like_a_third(self) -> None:
        similarity = np.array([[1, 0.99, 0.5], [0.99, 1, 0.98], [0.5, 0.98, 1]], np.float32)
        assert clusters(similarity, 0.95) == [[0, 1]]

    def test_joins_everything_that_is_alike(self) -> None:
        assert clusters(np.ones((500, 500), np.float32), 0.95) == [list(range(500))]
        assert clusters(np.eye(5, dtype=np.float32), 0.5) == []
        assert clusters(np.ones((1, 1), np.float32), 0.5) == []


def item(*memories: list[list[float]], pinned: bool = False, at: datetime | None = None) -> Item:
    vectors = [np.array(memory, np.float32) for memory in memories]
    return Item(pinned=pinned, vectors=vectors, earliest=at, latest=at)


class TestAlike:
    X, Y, XY = [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]

    def test_every_chunk_needs_its_like_whatever_their_order_and_number(self) -> None:
        found = similarities([item([self.X, self.Y]), item([self.Y, self.X, self.X]), item([self.X])])
        assert found.round(2).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]

    def test_is_the_least_of_all_that_two_stand_for(self) -> None:
        found = similarities([item([self.X], [self.XY]), item([self.Y])])
        assert found[0, 1] == found[1, 0] == 0

    def test_is_nothing_between_pinned_ones_and_distant_times(self) -> None:
        items = [item([self.X], pinned=True), item([self.X], pinned=True), item([self.X], at=AT)]
        items.append(item([self.X], at=AT + timedelta(days=2)))
        found = similarities(items)
        assert (found[0, 1] < 0, found[2, 3] < 0, found[0, 2], found[1, 3]) == (True, True, 1, 1)

    def test_is_the_same_in_small_pieces_as_at_once(self) -> None:
        rng = np.random.default_rng(1)
        vectors = rng.standard_normal((700, 16)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        items = [
            Item(pinned=False, vectors=[vectors[n : n + 1], vectors[n + 1 : n + 2]], earliest=None, latest=None)
            for n in range(0, 700, 2)
        ]
        cosines = (vectors @ vectors.T).reshape(350, 2, 350, 2).min(axis=(1, 3))
        assert np.abs(similarities(items) - cosines).max() < 1e-4


def candidate(n: int, **fields: Any) -> Candidate:
    given_: dict[str, Any] = {
        "pinned": False,
        "expires_at": None,
        "priority": 3,
        "importance": 0.5,
        "uses": 0,
        "length": 10,
        "created_at": AT,
        "scene": (),
    }
    return Candidate(id=UUID(int=n), **{**given_, **fields})


class TestWhoStays:
    def test_is_told_by_one_thing_after_the_other(self) -> None:
        ranked = [
            candidate(1, pinned=True, priority=1),
            candidate(2, priority=5),
            candidate(3, importance=0.9),
            candidate(4, uses=3),
            candidate(5, length=11),
            candidate(6, created_at=AT + timedelta(days=1)),
            candidate(8),
            candidate(7),
            candidate(9, expires_at=AT + timedelta(days=9), priority=5),
            candidate(10, expires_at=AT + timedelta(days=8), priority=5),
        ]
        shuffled = random.Random(1).sample(ranked, len(ranked))
        assert by_rank(shuffled) == ranked

    def test_takes_no_more_than_32_scenes(self) -> None:
        first = candidate(1, scene=tuple(f"a{n}" for n in range(30)))
        large, small = candidate(2, scene=("b", "c", "d")), candidate(3, scene=("e", "a1"))
        assert fitting([first, large, small]) == [first, small]

    def test_takes_no_scene_where_it_is_pinned_and_never_another_pinned_one(self) -> None:
        first = candidate(1, pinned=True, scene=("a", "b"))
        others = [candidate(2, scene=("a",)), candidate(3, scene=("c",)), candidate(4, pinned=True)]
        assert fitting([first, *others]) == [first, others[0]]


def test_thresholds_follow_from_the_span_of_a_model() -> None:
    assert [threshold_of(span) for span in (0.2, 0.5, 0.75)] == [0.98, 0.95, 0.925]

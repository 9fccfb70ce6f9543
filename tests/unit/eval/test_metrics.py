"""Figures that can be worked out on paper."""

import json
import math

import msgspec
import pytest
from tests.eval.metrics import Scores, mean_percent, ndcg, recall, reciprocal_rank, scores_of

RANKED = ["c", "a", "x", "y", "b", "z"]
GOLD = frozenset({"a", "b"})


class TestOneQuestion:
    def test_recall_is_the_share_of_gold_among_the_first_k(self) -> None:
        assert [recall(RANKED, GOLD, k) for k in (1, 2, 4, 5, 50)] == [0, 0.5, 0.5, 1, 1]

    def test_gold_that_is_nowhere_counts_as_not_found(self) -> None:
        assert recall(["a"], frozenset({"a", "gone"}), 10) == 0.5

    def test_ndcg_discounts_by_place_and_divides_by_the_best_order(self) -> None:
        found = 1 / math.log2(3) + 1 / math.log2(6)
        best = 1 + 1 / math.log2(3)
        assert ndcg(RANKED, GOLD, 10) == pytest.approx(found / best)

    def test_ndcg_of_more_gold_than_places_is_whole_when_all_places_are_gold(self) -> None:
        assert ndcg(["a", "b"], frozenset({"a", "b", "c"}), 2) == 1

    def test_reciprocal_rank_is_of_the_first_gold(self) -> None:
        assert reciprocal_rank(RANKED, GOLD) == 0.5
        assert reciprocal_rank(["x"], GOLD) == 0

    def test_sessions_rank_by_their_best_memory_and_count_once(self) -> None:
        session_of = {"c": "s1", "a": "s1", "x": "s2", "y": "s3", "b": "s6", "z": "s4"}
        before_b = ["c", "x", "y", "z", *(f"n{n}" for n in range(2)), "b"]
        session_of |= {"n0": "s5", "n1": "s1"}
        scores = scores_of(before_b, frozenset({"a", "b"}), session_of)
        assert (scores.session_recall_5, scores.session_recall_10) == (0.5, 1)

    def test_without_sessions_there_are_no_figures_of_sessions(self) -> None:
        encoded = json.loads(msgspec.json.encode(scores_of(RANKED, GOLD, {})))
        assert set(encoded) == {"recall@1", "recall@3", "recall@5", "recall@10", "recall@20", "ndcg@10", "mrr"}


class TestManyQuestions:
    def test_the_mean_is_in_percent_with_one_decimal(self) -> None:
        session_of = dict.fromkeys("abcxyz", "s")
        three = [scores_of(found, GOLD, session_of) for found in (["a"], ["x"], ["a", "b"])]
        mean = mean_percent(three)
        assert (mean.recall_1, mean.recall_10, mean.mrr, mean.session_recall_5) == (33.3, 50.0, 66.7, 100.0)

    def test_figures_that_no_question_has_stay_away(self) -> None:
        assert mean_percent([scores_of(RANKED, GOLD, {})]).session_recall_10 is msgspec.UNSET

    def test_of_nothing_there_is_no_mean(self) -> None:
        nothing: list[Scores] = []
        with pytest.raises(ValueError, match="no question"):
            mean_percent(nothing)

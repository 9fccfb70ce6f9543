"""How priority follows from use: the formula, and what its default thresholds make of patterns of use."""

import math
from itertools import pairwise

import pytest
from tests.bench.priority_plot import FILE, draw

from memplane_core.domain.priority import LEAST_AGE_H, PriorityRules, Usage, activation, deserved, stepped

DAY_H = 24.0
RULES = PriorityRules()


def used(days: float, *, every_days: float | None = None, **feedback: int) -> Usage:
    """A memory of that age, recalled at regular times or never."""
    return Usage(age_h=days * DAY_H, recalls=int(days / every_days) if every_days else 0, **feedback)


class TestActivation:
    def test_is_the_formula_of_act_r(self) -> None:
        # 9 uses in 400 hours: ln(9 / 0.5) - 0.5 * ln(400)
        assert activation(Usage(age_h=400, recalls=8)) == pytest.approx(2.890372 - 2.995732, abs=1e-6)

    def test_counts_a_young_memory_as_a_day_old(self) -> None:
        for age_h in (-5.0, 0.0, 1e-9, LEAST_AGE_H):
            assert activation(Usage(age_h=age_h, recalls=0)) == activation(Usage(age_h=LEAST_AGE_H, recalls=0))

    def test_the_first_opinion_counts_like_twice_or_half_the_uses(self) -> None:
        plain = activation(Usage(age_h=500, recalls=0))
        assert activation(Usage(age_h=500, recalls=0, helpful=1)) == pytest.approx(plain + math.log(2))
        assert activation(Usage(age_h=500, recalls=0, not_helpful=1)) == pytest.approx(plain - math.log(2))
        assert activation(Usage(age_h=500, recalls=0, helpful=7, not_helpful=7)) == pytest.approx(plain)
        assert activation(Usage(age_h=500, recalls=0, helpful=9), feedback_weight=0) == plain


class TestDeserved:
    def test_a_new_memory_keeps_the_priority_that_new_memories_have(self) -> None:
        assert {deserved(used(days), RULES) for days in (0, 1, 7, 14, 24)} == {3}

    def test_what_is_never_used_falls_to_2_within_a_month_and_to_1_within_four(self) -> None:
        assert [deserved(used(days), RULES) for days in (20, 30, 100, 120, 365)] == [3, 2, 2, 1, 1]

    def test_what_is_used_often_rises_to_5(self) -> None:
        assert [deserved(used(days, every_days=7), RULES) for days in (30, 60, 180, 365)] == [3, 4, 5, 5]
        assert [deserved(used(days, every_days=1), RULES) for days in (2, 365)] == [5, 5]
        assert deserved(used(365, every_days=30), RULES) == 3

    def test_falls_with_age_and_rises_with_use_and_feedback(self) -> None:
        ages = [deserved(Usage(age_h=24.0 * 1.3**n, recalls=10), RULES) for n in range(40)]
        assert all(later <= earlier for earlier, later in pairwise(ages))
        assert (ages[0], ages[-1]) == (5, 1)
        uses = [deserved(Usage(age_h=5000, recalls=recalls), RULES) for recalls in range(200)]
        assert uses == sorted(uses)
        opinions = [deserved(Usage(age_h=5000, recalls=5, helpful=n), RULES) for n in range(50)]
        assert (opinions, opinions[-1]) == (sorted(opinions), 5)
        assert deserved(Usage(age_h=5000, recalls=100, not_helpful=200), RULES) == 1

    def test_a_threshold_belongs_to_the_higher_priority(self) -> None:
        usage = Usage(age_h=100, recalls=3)
        at = activation(usage)
        assert deserved(usage, PriorityRules(thresholds=(at, at + 1, at + 2, at + 3))) == 2
        assert deserved(usage, PriorityRules(thresholds=(at - 3, at - 2, at - 1, at))) == 5


class TestStepped:
    def test_goes_one_step_at_a_time_and_stays_where_it_belongs(self) -> None:
        best, worst = used(365, every_days=1), used(365)
        assert [stepped(priority, best, RULES) for priority in range(1, 6)] == [2, 3, 4, 5, 5]
        assert [stepped(priority, worst, RULES) for priority in range(1, 6)] == [1, 1, 2, 3, 4]


def test_the_plot_in_the_docs_shows_the_rules_as_they_are() -> None:
    assert FILE.read_text() == draw(), "draw it anew: python -m tests.bench.priority_plot"

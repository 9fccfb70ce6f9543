"""What leaves a session's buffer, when and where to: the same every time."""

import random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplane_core.domain.index import FloatArray
from memplane_core.domain.observations import Held, Overflow, ShortTermRules, Taken, alike_from, likeness, take

FIFO = ShortTermRules(buffer_size=3)
ENHANCED = ShortTermRules(kind="enhanced", buffer_size=3, enhance_similarity_threshold=0.9, enhance_threshold=2)


def unit(*parts: float) -> FloatArray:
    vector = np.array([parts], np.float32)
    return vector / np.float32(np.linalg.norm(vector))


def held(n: int, importance: float = 0.5, strengthened: int = 0, vectors: FloatArray | None = None) -> Held:
    return Held(id=UUID(int=n), importance=importance, strengthened=strengthened, vectors=vectors)


def numbers(ids: tuple[UUID, ...]) -> list[int]:
    return [its.int for its in ids]


def run(rules: ShortTermRules, came: list[Held]) -> tuple[list[Taken], list[int]]:
    """All that happens when these come one after the other, and what is held in the end."""
    buffer: tuple[Held, ...] = ()
    happened: list[Taken] = []
    for its in came:
        happened.append(take(buffer, its, rules=rules, alike_from=alike_from(rules, span=0.5)))
        buffer = happened[-1].held
    return happened, [its.id.int for its in buffer]


class TestFirstInFirstOut:
    def test_the_oldest_leaves_whatever_it_matters(self) -> None:
        happened, left = run(FIFO, [held(1, 1.0), held(2, 0.0), held(3), held(4), held(5)])
        assert [numbers(taken.promoted) for taken in happened] == [[], [], [], [1], [2]]
        assert left == [3, 4, 5]

    def test_a_buffer_that_was_made_smaller_empties_down_to_its_size_oldest_first(self) -> None:
        buffer = [held(n) for n in range(1, 6)]
        taken = take(buffer, held(6), rules=ShortTermRules(buffer_size=2), alike_from=1.0)
        assert numbers(taken.promoted) == [1, 2, 3, 4]

    def test_alike_ones_do_not_strengthen_each_other(self) -> None:
        happened, left = run(FIFO, [held(n, vectors=unit(1, 0)) for n in (1, 2, 3)])
        assert [taken.strengthened for taken in happened] == [()] * 3
        assert left == [1, 2, 3]

    def test_what_leaves_is_forgotten_where_the_rules_say_so(self) -> None:
        taken = take(
            [held(n) for n in (1, 2, 3)], held(4), rules=ShortTermRules(buffer_size=3, overflow="drop"), alike_from=1
        )
        assert (numbers(taken.dropped), taken.promoted) == ([1], ())


class TestTheSenses:
    def test_below_the_threshold_nothing_happens_and_at_it_all_does(self) -> None:
        rules = ShortTermRules(buffer_size=1, threshold=0.4)
        below = take([held(1)], held(2, 0.39), rules=rules, alike_from=1.0)
        assert (below.kept, below.promoted, numbers(tuple(its.id for its in below.held))) == (False, (), [1])
        at = take([held(1)], held(2, 0.4), rules=rules, alike_from=1.0)
        assert (at.kept, numbers(at.promoted)) == (True, [1])

    def test_importance_0_is_kept_where_there_is_no_threshold(self) -> None:
        assert take([], held(1, 0.0), rules=FIFO, alike_from=1.0).kept


class TestEnhanced:
    def test_what_is_observed_often_enough_becomes_a_memory_before_there_is_no_room(self) -> None:
        same = unit(1, 0.1)
        happened, left = run(ENHANCED, [held(1, vectors=same), held(2, vectors=same), held(3, vectors=same)])
        assert [numbers(taken.strengthened) for taken in happened] == [[], [1], [1, 2]]
        assert [numbers(taken.promoted) for taken in happened] == [[], [], [1]]
        assert left == [2, 3]

    def test_the_least_important_leaves_then_the_least_strengthened_then_the_oldest(self) -> None:
        buffer = [held(1, 0.5), held(2, 0.2, strengthened=1), held(3, 0.2)]
        assert numbers(take(buffer, held(4, 0.5), rules=ENHANCED, alike_from=0.9).promoted) == [3]
        buffer = [held(1, 0.5), held(2, 0.2, strengthened=1), held(3, 0.4)]
        assert numbers(take(buffer, held(4, 0.5), rules=ENHANCED, alike_from=0.9).promoted) == [2]
        assert numbers(take([held(1), held(2), held(3)], held(4), rules=ENHANCED, alike_from=0.9).promoted) == [1]
        # Which may be the one that has just come.
        assert numbers(take([held(1), held(2), held(3)], held(4, 0.1), rules=ENHANCED, alike_from=0.9).promoted) == [4]

    def test_what_was_strengthened_enough_becomes_a_memory_though_what_leaves_is_forgotten(self) -> None:
        rules = ShortTermRules(kind="enhanced", buffer_size=1, enhance_threshold=1, overflow="drop")
        taken = take([held(1, vectors=unit(1, 0))], held(2, vectors=unit(1, 0)), rules=rules, alike_from=0.9)
        assert (numbers(taken.promoted), taken.dropped) == ([1], ())

    def test_without_vectors_or_with_those_of_another_model_nothing_is_alike(self) -> None:
        assert likeness(unit(1, 0), None) == likeness(None, None) == likeness(unit(1, 0), unit(1, 0, 0)) == -1.0
        assert likeness(np.vstack([unit(0, 1), unit(1, 0)]), unit(1, 0)) == 1.0

    def test_the_models_span_says_what_is_alike_unless_the_rules_do(self) -> None:
        assert alike_from(ShortTermRules(kind="enhanced"), span=0.2) == 0.95
        assert alike_from(ENHANCED, span=0.2) == 0.9


OBSERVED = st.lists(
    st.tuples(st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.sampled_from([None, (1.0, 0.0), (0.0, 1.0), (1.0, 0.2)])),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(OBSERVED, st.sampled_from(["fifo", "enhanced"]), st.sampled_from(["promote", "drop"]), st.integers(1, 6))
def test_whatever_comes_is_in_one_place_exactly_and_the_same_comes_to_the_same(
    observed: list[tuple[float, tuple[float, float] | None]], kind: str, overflow: Overflow, size: int
) -> None:
    rules = ShortTermRules(
        kind="fifo" if kind == "fifo" else "enhanced",
        buffer_size=size,
        threshold=0.2,
        enhance_similarity_threshold=0.95,
        enhance_threshold=2,
        overflow=overflow,
    )
    came = [
        held(n, importance, vectors=None if vector is None else unit(*vector))
        for n, (importance, vector) in enumerate(observed, 1)
    ]
    happened, left = run(rules, came)
    away = [number for taken in happened for number in numbers((*taken.promoted, *taken.dropped))]
    unseen = [its.id.int for its, taken in zip(came, happened, strict=True) if not taken.kept]
    assert sorted([*away, *unseen, *left]) == [its.id.int for its in came]
    assert left == sorted(left)
    assert len(left) <= size
    if kind == "fifo":
        assert away == sorted(away)
    random.seed(1)
    assert run(rules, came)[1] == left


@pytest.mark.parametrize("kind", ["fifo", "enhanced"])
def test_a_thousand_through_a_buffer_of_five_are_all_somewhere_once(kind: str) -> None:
    rules = ShortTermRules(kind="fifo" if kind == "fifo" else "enhanced")
    happened, left = run(rules, [held(n, importance=(n % 7) / 7) for n in range(1000)])
    promoted = [number for taken in happened for number in numbers(taken.promoted)]
    assert sorted([*promoted, *left]) == list(range(1000))
    assert len(left) == 5

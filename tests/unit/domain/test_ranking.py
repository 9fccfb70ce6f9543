import itertools
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.contracts.presets import PRESETS
from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.lexical import query_words
from memplane_core.domain.ranking import AFTER, BEFORE, DATED_DAYS, Candidate, Preset, Question, Ranked, Weights, rank
from memplane_core.domain.text import terms

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = ModelProfile(name="m", dim=2, max_tokens=8, span=0.4, anchor_low=0.5, anchor_high=0.9, multilingual=False)
MATCH = Weights(match=1, recency=0, importance=0, priority=0)


def _memory(n: int, text: str = "", *, cosine: float | None = 0.5, hours: float = 0.0, **fields: Any) -> Candidate:
    given: dict[str, Any] = {
        "memory_id": UUID(int=n),
        "version": 1,
        "cosine": cosine,
        "terms": terms(text),
        "session": None,
        "actor": None,
        "occurred_at": NOW,
        "question": False,
        "importance": 0.5,
        "priority": 3,
        "last_accessed_at": NOW - timedelta(hours=hours),
    }
    return Candidate(**(given | fields))


def _rank(
    pool: list[Candidate], query: str = "", *, weights: Weights = MATCH, preset: Preset | None = None
) -> list[Ranked]:
    question = Question(text=query, terms=query_words(terms(query)), model=MODEL)
    return rank(pool, question=question, now=NOW, weights=weights, preset=preset)


def _numbers(ranked: list[Ranked]) -> list[int]:
    return [place.candidate.memory_id.int for place in ranked]


class TestScore:
    def test_is_the_weighted_mean_of_match_recency_importance_and_priority(self) -> None:
        pool = [
            _memory(1, cosine=0.9, importance=0.2, priority=5, hours=10),
            _memory(2, cosine=0.7, importance=1.0, priority=1, hours=0),
        ]

        first, second = _rank(pool, weights=Weights())

        assert first.candidate.memory_id == UUID(int=1)
        assert first.score == pytest.approx(0.75 * 1.0 + 0.10 * 0.99**10 + 0.10 * 0.2 + 0.05 * 1.0, abs=1e-12)
        assert second.score == pytest.approx(0.75 * second.match + 0.10 * 1.0 + 0.10 * 1.0 + 0.05 * 0.0, abs=1e-12)

    def test_dbgpt_adds_similarity_recency_and_a_little_importance(self) -> None:
        pool = [_memory(1, cosine=0.9, importance=0.2, hours=10), _memory(2, cosine=0.4, importance=1.0)]

        first, second = _rank(pool, preset="dbgpt")

        assert _numbers([first, second]) == [1, 2]
        assert first.score == pytest.approx(0.9 + 0.99**10 + 0.15 * 0.2)
        assert second.score == pytest.approx(0.4 + 1.0 + 0.15)

    def test_presets_give_what_their_formulas_say_for_any_records_and_clock(self) -> None:
        chance = random.Random(2023)
        for _ in range(50):
            now = NOW + timedelta(hours=chance.uniform(0, 10_000))
            decay = chance.choice([0.0, 0.01, 0.2])
            pool = [
                _memory(
                    n,
                    cosine=chance.uniform(-1, 1),
                    hours=chance.uniform(-100, 20_000),
                    importance=chance.random(),
                    priority=chance.randint(1, 5),
                )
                for n in range(40)
            ]
            question = Question(text="", terms=b"", model=MODEL)
            for place in rank(pool, question=question, now=now, weights=MATCH, preset="dbgpt", decay_rate=decay):
                its = place.candidate
                hours = max(0.0, (now - its.last_accessed_at) / timedelta(hours=1))
                said = (its.cosine or 0.0) + (1 - decay) ** hours + 0.15 * its.importance
                assert place.score == pytest.approx(said, abs=1e-9)
                assert place.recency == pytest.approx((1 - decay) ** hours, abs=1e-9)
            experience = PRESETS["experience"].weights
            assert isinstance(experience, Weights)
            for place in rank(pool, question=question, now=now, weights=experience, decay_rate=decay):
                said = 0.8 * place.match + 0.2 * (place.candidate.priority - 1) / 4
                assert place.score == pytest.approx(said, abs=1e-9)

    def test_an_exact_match_is_not_buried_by_something_merely_recent(self) -> None:
        old = _memory(1, "the boiler was repaired by Anna", cosine=0.9, hours=24 * 365, priority=1, importance=0.1)
        fresh = [_memory(n, "a walk by the sea", cosine=0.6, importance=0.9, priority=5) for n in range(2, 20)]

        assert _numbers(_rank([*fresh, old], "who repaired the boiler?", weights=Weights()))[0] == 1

    def test_a_touch_after_the_ranking_clock_counts_as_now(self) -> None:
        [only] = _rank([_memory(1, hours=-72)])
        assert only.recency == 1.0

    def test_equal_memories_are_given_newest_first(self) -> None:
        assert _numbers(_rank([_memory(1), _memory(3), _memory(2)])) == [3, 2, 1]

    def test_an_empty_pool_gives_nothing(self) -> None:
        assert _rank([]) == []


class TestDense:
    def test_falls_to_0_at_the_models_span_below_the_best(self) -> None:
        pool = [_memory(1, cosine=0.9), _memory(2, cosine=0.7), _memory(3, cosine=0.5), _memory(4, cosine=0.1)]
        assert [place.dense for place in _rank(pool)] == pytest.approx([1.0, 0.5, 0.0, 0.0])

    def test_looks_closer_where_all_cosines_lie_together(self) -> None:
        pool = [_memory(n, cosine=0.80 + 0.002 * n) for n in range(20)]
        best, *_, worst = _rank(pool)
        assert (best.dense, worst.dense) == (1.0, pytest.approx(1 - 0.038 / 0.1))

    def test_a_memory_that_waits_for_its_vector_is_judged_by_its_words(self) -> None:
        pool = [_memory(1, "about the sea", cosine=0.6), _memory(2, "the order ORD-7781 was refunded", cosine=None)]
        assert _numbers(_rank(pool, "was ORD-7781 refunded?")) == [2, 1]

    def test_without_any_vector_words_alone_decide(self) -> None:
        pool = [_memory(1, "a walk by the sea", cosine=None), _memory(2, "订单已经退款成功", cosine=None)]
        first, second = _rank(pool, "退款")
        assert _numbers([first, second]) == [2, 1]
        assert (first.dense, first.relevance, second.relevance) == (0.0, 1.0, 0.0)


class TestLexical:
    def test_a_neighbour_in_the_session_lends_some_of_its_words(self) -> None:
        minutes = {1: 4, 2: 1, 3: 2, 4: 3, 5: 2}
        texts = {
            1: "yes, in the mountains",
            2: "hello",
            3: "did you go skiing?",
            4: "yes, in the mountains",
            5: "hello",
        }
        pool = [
            _memory(n, texts[n], session=2 if n == 5 else 1, occurred_at=NOW + timedelta(minutes=minutes[n]))
            for n in minutes
        ]
        lexical = {place.candidate.memory_id.int: place.lexical for place in _rank(pool, "skiing")}
        assert lexical == pytest.approx({1: 0.0, 2: AFTER, 3: 1.0, 4: BEFORE, 5: 0.0})

    def test_memories_of_one_moment_are_neighbours_in_the_order_of_their_ids(self) -> None:
        pool = [
            _memory(3, "in the mountains", session=1),
            _memory(1, "hello", session=1),
            _memory(2, "skiing?", session=1),
        ]
        lexical = {place.candidate.memory_id.int: place.lexical for place in _rank(pool, "skiing")}
        assert lexical == pytest.approx({1: AFTER, 2: 1.0, 3: BEFORE})

    def test_words_that_only_ask_do_not_count_beside_others(self) -> None:
        pool = [_memory(1, "what did you do when you were there"), _memory(2, "a new violin")]
        assert _numbers(_rank(pool, "When did you buy the violin?")) == [2, 1]

    def test_a_rare_word_counts_more_than_a_common_one(self) -> None:
        pool = [*(_memory(n, "the garden party") for n in range(1, 9)), _memory(9, "the oboe lesson")]
        assert _numbers(_rank(pool, "garden oboe"))[0] == 9


class TestSignals:
    def test_the_one_actor_named_is_preferred(self) -> None:
        pool = [_memory(1, actor="Jon"), _memory(2, actor="Ann"), _memory(3, actor=None)]
        assert [place.actor for place in _rank(pool, "What does Ann like?")] == [1.0, 0.0, 0.0]
        assert {place.actor for place in _rank(pool, "Do Ann and Jon know each other?")} == {0.0}

    @pytest.mark.parametrize("query", ["Who is Jonathan?", "planning", "fooJon"])
    def test_a_name_inside_a_longer_word_names_no_one(self, query: str) -> None:
        pool = [_memory(1, actor="Jon"), _memory(2, actor="Ann")]
        assert {place.actor for place in _rank(pool, query)} == {0.0}

    @pytest.mark.parametrize("query", ["小明喜欢什么", "What does 小明 like?", "Ann's friend 小明"])
    def test_a_chinese_name_needs_no_space_around_it(self, query: str) -> None:
        pool = [_memory(1, actor="小明"), _memory(2, actor="小红")]
        assert [place.actor for place in _rank(pool, query)] == [1.0, 0.0]

    def test_a_named_day_prefers_memories_near_it(self) -> None:
        days = {1: 0, 2: 7, 3: DATED_DAYS, 4: -1, 5: 400}
        may = datetime(2023, 5, 8, 12, tzinfo=UTC)
        pool = [_memory(n, occurred_at=may + timedelta(days=away)) for n, away in days.items()]
        dated = {place.candidate.memory_id.int: place.dated for place in _rank(pool, "Where was she on 8 May, 2023?")}
        assert dated == pytest.approx({1: 1.0, 2: 0.5, 3: 0.0, 4: 1.0, 5: 0.0})

    def test_a_session_speaks_for_its_memories_by_its_best_three(self) -> None:
        pool = [_memory(n, cosine=0.9, session=1) for n in range(1, 4)]
        pool += [_memory(4, cosine=0.8, session=1), _memory(5, cosine=0.8, session=2)]
        places = {place.candidate.memory_id.int: place for place in _rank(pool)}
        assert places[4].dense == places[5].dense
        assert places[4].session == places[1].session == pytest.approx(0.65)
        assert places[5].session == pytest.approx(0.65 * 0.75 / 3)

    def test_a_memory_of_no_session_is_not_put_behind_conversations_for_it(self) -> None:
        talk = [_memory(n, cosine=0.8, session=1) for n in range(1, 4)]
        assert _numbers(_rank([*talk, _memory(9, cosine=0.9)]))[0] == 9

    def test_exclamations_and_questions_tell_less_and_a_time_tells_more(self) -> None:
        story = "we took the early train to the lake and swam there until it got dark and the rain came over the hills"
        pool = [
            _memory(1, "wow, great!"),
            _memory(2, story, question=True),
            _memory(3, story),
            _memory(4, story + " last week"),
            _memory(5, story + " 上周"),
        ]
        assert sorted(_numbers(_rank(pool))[:2]) == [4, 5]
        assert _numbers(_rank(pool))[2:] == [3, 2, 1]


class TestRelevance:
    @pytest.mark.parametrize(("cosine", "relevance"), [(0.2, 0.0), (0.5, 0.0), (0.7, 0.5), (0.9, 1.0), (1.0, 1.0)])
    def test_is_the_cosine_between_the_models_anchors(self, cosine: float, relevance: float) -> None:
        [only] = _rank([_memory(1, cosine=cosine)])
        assert only.relevance == pytest.approx(relevance)

    def test_chinese_questions_are_held_to_the_anchors_of_chinese(self) -> None:
        model = msgspec.structs.replace(MODEL, anchor_cjk=0.1)
        pool = [_memory(1, cosine=0.8)]
        relevance = {
            query: rank(pool, question=Question(text=query, terms=b"", model=model), now=NOW, weights=MATCH)[
                0
            ].relevance
            for query in ("Where is it?", "它在哪里？", "iPhone 在哪里", "the 火锅 restaurant")
        }
        assert list(relevance.values()) == pytest.approx([0.75, 0.5, 0.75, 0.75])

    def test_shared_words_add_to_what_meaning_says(self) -> None:
        places = _rank([_memory(1, "violin", cosine=0.6), _memory(2, "oboe", cosine=0.6)], "violin lessons")
        assert places[0].relevance > 0.4 > places[1].relevance == pytest.approx(0.25)

    def test_the_best_of_nonsense_matches_best_and_stays_irrelevant(self) -> None:
        [first, _] = _rank([_memory(1, "by the sea", cosine=0.4), _memory(2, "a violin", cosine=0.3)], "qwrt zxcv")
        assert (first.match, first.relevance) == (1.0, 0.0)


@given(
    st.lists(
        st.tuples(
            st.floats(-1, 1) | st.none(),
            st.floats(0, 1),
            st.integers(1, 5),
            st.floats(0, 10_000),
            st.sampled_from(["", "the sea", "上周我们去海边", "wow!", "a violin yesterday " * 40]),
            st.integers(1, 3) | st.none(),
        ),
        min_size=1,
        max_size=30,
    ),
    st.tuples(*[st.floats(0, 1000)] * 4).filter(lambda weights: sum(weights) > 0),
    st.sampled_from(["", "sea", "when?", "海边 violin 2025", "\U0001f600"]),
)
def test_scores_are_between_0_and_1_sorted_and_whole(
    rows: list[tuple[float | None, float, int, float, str, int | None]],
    given_weights: tuple[float, float, float, float],
    query: str,
) -> None:
    match, recency, importance, priority = given_weights
    pool = [
        _memory(n, text, cosine=cosine, importance=worth, priority=level, hours=hours, session=session)
        for n, (cosine, worth, level, hours, text, session) in enumerate(rows)
    ]

    ranked = _rank(pool, query, weights=Weights(match=match, recency=recency, importance=importance, priority=priority))

    assert sorted((place.candidate for place in ranked), key=lambda c: c.memory_id) == pool
    assert all(-1e-9 <= place.score <= 1 + 1e-9 and 0 <= place.relevance <= 1 for place in ranked)
    assert all(a.score >= b.score for a, b in itertools.pairwise(ranked))

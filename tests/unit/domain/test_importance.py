"""Importance: what a model's answer says, and the guess without a model."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.domain.importance import LONGEST_ANSWER, UnclearImportance, guess_importance, importance_of


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer", "number"),
        [
            ("8", 8),
            (" 8.\n", 8),
            ("**8**", 8),
            ("7.5", 7.5),
            ("1", 1),
            ("10", 10),
            ("10.0", 10),
            ("８", 8),
            ("⑦", 7),
            ("8/10", 8),
            ("８／１０", 8),
            ("8 / 10.", 8),
            ("8 out of 10", 8),
            ("Importance: 8", 8),
            ("**Importance:** 8", 8),
            ("importance is 8/10", 8),
            ("Rating = 3", 3),
            ('{"importance": 6}', 6),
            ("I would rate this memory a 7.", 7),
            ("On a scale of 1 to 10, this is a 9.", 9),
            ("On a scale from 1-10 I'd say 4", 4),
            ("8\n\nShe moved in 2023 and has 3 cats.", 8),
            ("She moved in 2023 and has 3 cats.\n\nScore: 8", 8),
            ("She has 3 cats, so this is 8/10.", 8),
            ("<think>Perhaps 3? No, she has 12 cats.</think>\n6", 6),
            ("8, because a move is rare", 8),
            ("九", 9),
            ("十", 10),
            ("九分", 9),
            ("八分。", 8),
            ("重要性：7", 7),
            ("重要性:七", 7),
            ("评分：8分", 8),
            ("我给这条记忆打 6 分，因为它提到搬家。", 6),
            ("满分10分，我给8分", 8),
            ("1到10之间，我选 5", 5),
            ("我给8", 8),
            ("Ich gebe eine 7", 7),
            ("eight", 8),
            ("Eight out of ten.", 8),
            ("importance is an 8", 8),
            ("8" + " \n" * 10_000, 8),
            ("<think>" + "Is it 3? " * 5_000 + "</think>8", 8),
            ("Importance: nine", 9),
        ],
    )
    def test_a_number_from_one_to_ten_is_taken_whatever_is_around_it(self, answer: str, number: float) -> None:
        assert importance_of(answer) == pytest.approx((number - 1) / 9, abs=1e-4)

    @pytest.mark.parametrize(
        ("answer", "fault"),
        [
            ("", "no_number"),
            ("very important", "no_number"),
            ("十分重要", "no_number"),
            ("这是一个重要的记忆", "no_number"),
            ("This is one of those.", "no_number"),
            ("M3 or GPT4", "no_number"),
            ("x" * (LONGEST_ANSWER + 1), "no_number"),
            ("0", "out_of_range"),
            ("11", "out_of_range"),
            ("100", "out_of_range"),
            ("-3", "out_of_range"),
            ("Importance: -3", "out_of_range"),
            ("0.5", "out_of_range"),
            ("12/10", "out_of_range"),
            ("十一", "out_of_range"),
            ("零", "out_of_range"),
            ("80%", "out_of_range"),
            ("4/5", "out_of_range"),
            ("7-8", "contradicting"),
            ("Importance: 7-8", "contradicting"),
            ("between 7 and 8", "contradicting"),
            ("7 to 8/10", "contradicting"),
            ("8/10, or rather 3/10", "contradicting"),
            ("3\n\n9", "contradicting"),
            ("In 2023 she had 3 cats", "contradicting"),
            ("Importance: 2. Rating: 9", "contradicting"),
        ],
    )
    def test_what_is_not_surely_one_is_refused_and_never_bent(self, answer: str, fault: str) -> None:
        with pytest.raises(UnclearImportance) as refused:
            importance_of(answer)
        assert refused.value.fault == fault

    @pytest.mark.timeout(5)
    @pytest.mark.parametrize("repeated", ["为", " ", "\n", "(\n", "<think>", "rate ", "一", "\ufdfa"])
    def test_what_a_model_repeats_until_it_is_stopped_is_refused_at_once(self, repeated: str) -> None:
        for answer in ("importance" + repeated * 20_000, "importance" + repeated * (1_900 // len(repeated))):
            with pytest.raises(UnclearImportance):
                importance_of(answer)

    @given(st.text(max_size=400))
    def test_whatever_is_said_is_a_number_or_refused(self, answer: str) -> None:
        with contextlib.suppress(UnclearImportance):
            assert 0 <= importance_of(answer) <= 1


class TestGuess:
    @pytest.mark.parametrize(
        ("more", "less"),
        [
            ("I moved from Oslo to Lisbon on 3 March 2023.", "It was nice."),
            ("My daughter is allergic to peanuts.", "Thanks, take care!"),
            ("I must hand in the report by Friday.", "Sounds good!"),
            ("We decided to adopt a dog last week.", "What do you think about that?"),
            ("我去年三月从北京搬到上海。", "哈哈，好的。"),
            ("我对花生过敏，从不吃坚果。", "你好，今天怎么样？"),
            ("I love hiking in the Alps every summer.", "ok"),
        ],
    )
    def test_facts_weigh_more_than_smalltalk(self, more: str, less: str) -> None:
        assert guess_importance(more) > guess_importance(less) + 0.15

    @given(st.text(max_size=200))
    def test_it_is_from_zero_to_one_and_the_same_each_time(self, text: str) -> None:
        guess = guess_importance(text)
        assert 0 <= guess <= 1
        assert guess_importance(text) == guess

    def test_a_text_of_the_greatest_length_is_read_in_no_time(self) -> None:
        assert 0 <= guess_importance("a" * 32_768) <= 1
        assert 0 <= guess_importance("A " * 16_384) <= 1

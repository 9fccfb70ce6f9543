"""What a language model is shown, and what is taken of its answers."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane_core.storage.reflection import Text
from memplane_maintenance.jobs.reflect_prompts import (
    REFLECT,
    UnreadableInsights,
    insights_of,
    shown,
    to_reflect,
    to_score,
)

AT = datetime(2026, 5, 8, tzinfo=UTC)


def text_of(n: int, content: str, actor: str | None = None) -> Text:
    return Text(
        id=UUID(int=n),
        content=content,
        actor=actor,
        occurred_at=AT,
        created_at=AT,
        importance=0.5,
        version=1,
        rev=1,
    )


TEXTS = [text_of(n, f"memory {n}") for n in (1, 2, 3)]


def cited(answer: str, *, most: int = 5) -> list[tuple[str, list[int]]]:
    found = insights_of(answer, TEXTS, most=most).found
    return [(insight.text, [source.id.int for source in insight.sources]) for insight in found]


class TestQuestions:
    @given(st.text(max_size=300), st.text(max_size=20))
    def test_no_text_ends_the_document_that_it_is_shown_in(self, content: str, actor: str) -> None:
        question = json.loads(to_reflect([text_of(1, content, actor), text_of(2, "next")]))
        assert question["memories"] == [
            {"number": 1, "date": "2026-05-08", "said_by": actor, "text": content},
            {"number": 2, "date": "2026-05-08", "text": "next"},
        ]
        assert json.loads(to_score(text_of(1, content)))["memory"]["text"] == content

    def test_a_long_text_is_cut_where_it_is_shown(self) -> None:
        assert json.loads(to_score(text_of(1, "x" * 5_000)))["memory"]["text"] == "x" * 4_000 + " […]"

    def test_a_question_holds_so_many_bytes_and_one_memory_at_least(self) -> None:
        assert len(shown([text_of(n, "x" * 1_000) for n in range(100)])) == 48
        assert len(shown([text_of(n, "水" * 2_000) for n in range(100)])) == 8
        assert len(shown([text_of(1, "水" * 10_000)])) == 1
        assert shown(TEXTS) == TEXTS

    def test_the_rules_say_how_many_insights(self) -> None:
        assert "at most 3 insights" in REFLECT.format(most=3)
        assert '{"insights": [{"text": "...", "sources": [1, 4]}]}' in REFLECT.format(most=3)


class TestAnswers:
    @pytest.mark.parametrize(
        "answer",
        [
            '{"insights": [{"text": "x", "sources": [1, 3]}]}',
            '[{"text": "x", "sources": [3, 1, 1]}]',
            'Here it is:\n```json\n{"insights": [{"text": " x ", "sources": ["1", "M3"]}]}\n```\nDone.',
            '<think>[{"text": "no", "sources": [2]}]</think>{"insights": [{"text": "x", "sources": [1, 3]}]}',
            'Sources [], to be sure: {"insights": [{"text": "x", "sources": [1, 3]}]}',
            'From [1] and [3]: {"insights": [{"text": "x", "sources": [1, 3, 4, 0, -2, 2.5, true, null, "all"]}]}',
        ],
    )
    def test_its_json_is_found_and_only_what_was_shown_is_cited(self, answer: str) -> None:
        assert cited(answer) == [("x", [1, 3])]

    def test_in_any_language(self) -> None:
        assert cited('{"insights": [{"text": "她喜欢大海。", "sources": [2]}]}') == [("她喜欢大海。", [2])]

    @pytest.mark.parametrize("answer", ['{"insights": []}', "[]", "none: []"])
    def test_none_is_an_answer(self, answer: str) -> None:
        assert insights_of(answer, TEXTS, most=5).found == []

    @pytest.mark.parametrize(
        "answer",
        ["", "no json", '{"insights": "x"}', '{"insights": [1]}', '{"other": []}', '{"insights": [', "[" * 100_000],
    )
    def test_anything_else_cannot_be_read(self, answer: str) -> None:
        with pytest.raises(UnreadableInsights):
            insights_of(answer, TEXTS, most=5)

    @pytest.mark.parametrize(
        "item",
        [
            {"text": "x"},
            {"text": "x", "sources": []},
            {"text": "x", "sources": "1"},
            {"text": "x", "sources": [4]},
            {"text": "x", "sources": [str(UUID(int=1))]},
            {"text": 3, "sources": [1]},
            {"text": "  ", "sources": [1]},
            {"text": "a\x00b", "sources": [1]},
            {"text": "\ud800", "sources": [1]},
            {"text": "x" * 2_001, "sources": [1]},
        ],
    )
    def test_what_is_no_insight_is_dropped_and_counted(self, item: dict[str, object]) -> None:
        answer = json.dumps({"insights": [item, {"text": "y", "sources": [1]}]})
        found = insights_of(answer, TEXTS, most=5)
        assert ([insight.text for insight in found.found], found.dropped) == (["y"], 1)

    @given(st.text(alphabet='[]{}":,insighttextsources0123 ', max_size=200))
    def test_whatever_is_said_is_read_or_refused(self, answer: str) -> None:
        try:
            found = insights_of(answer, TEXTS, most=2).found
        except UnreadableInsights:
            return
        assert len(found) <= 2

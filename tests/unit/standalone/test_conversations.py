"""Conversations for the demo: our own, and LoCoMo's with its ways of writing evidence."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memplane_standalone.demo.conversations import BadConversation, Question, bundled, from_locomo, memories, spread


def locomo(path: Path) -> Path:
    turns = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "Look at my dog.", "blip_caption": "a brown dog"},
        {"speaker": "Bob", "dia_id": "D1:2", "text": "Nice."},
    ]
    sample = {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": turns,
            "session_2_date_time": "12:05 am on 9 May, 2023",
            "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "Good night."}],
        },
        "qa": [
            {"question": "one", "category": 4, "evidence": ["D1:01; D:2:1"]},
            {"question": "gone", "category": 4, "evidence": ["D9:9"]},
            {"question": "many hops", "category": 1, "evidence": ["D1:1"]},
            {"question": "adversarial", "category": 5, "evidence": ["D1:1"]},
        ],
    }
    path.write_text(json.dumps([sample]))
    return path


class TestBundled:
    def test_it_is_four_sessions_of_two_people_with_five_answerable_questions(self) -> None:
        conversation = bundled()
        ids = [turn.id for turn in conversation.turns]
        assert len(ids) == len(set(ids)) >= 60
        assert {turn.session for turn in conversation.turns} == {1, 2, 3, 4}
        assert {turn.speaker for turn in conversation.turns} == {"Noor", "Emil"}
        assert len(conversation.questions) == 5
        assert all(question.evidence and set(question.evidence) <= set(ids) for question in conversation.questions)


class TestLocomo:
    def test_turns_carry_captions_sessions_and_a_clock(self, tmp_path: Path) -> None:
        writes = memories(from_locomo(locomo(tmp_path / "locomo.json")))
        began = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
        assert [write.content for write in writes] == ["Look at my dog. [image: a brown dog]", "Nice.", "Good night."]
        assert [write.occurred_at for write in writes] == [
            began,
            began + timedelta(seconds=1),
            datetime(2023, 5, 9, 0, 5, tzinfo=UTC),
        ]
        assert [write.external_id for write in writes] == ["D1:1", "D1:2", "D2:1"]
        assert {(write.user_id, write.actor, write.session_id) for write in writes} == {
            ("conv-1", "Ann", "session-1"),
            ("conv-1", "Bob", "session-1"),
            ("conv-1", "Ann", "session-2"),
        }

    def test_evidence_is_repaired_and_questions_without_any_are_left_out(self, tmp_path: Path) -> None:
        questions = from_locomo(locomo(tmp_path / "locomo.json")).questions
        assert questions == [Question(text="one", evidence=["D1:1", "D2:1"])]

    @pytest.mark.parametrize("content", ["{}", "[{}]", "not JSON", "[]"])
    def test_another_file_is_refused_by_name(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(BadConversation, match=r"other\.json"):
            from_locomo(tmp_path / "other.json")


def test_questions_are_taken_at_even_distances() -> None:
    questions = [Question(text=str(number), evidence=[]) for number in range(12)]
    assert [question.text for question in spread(questions, 5)] == ["0", "2", "4", "7", "9"]
    assert spread(questions[:3], 5) == questions[:3]

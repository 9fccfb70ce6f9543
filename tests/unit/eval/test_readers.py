"""Data files as they are published, in the smallest form."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.eval.catalog import SETS, sets_for, shortened
from tests.eval.locomo import evidence_turns, locomo_sets
from tests.eval.madial import madial_set, query_of
from tests.eval.passages import cmrc_set, xquad_sets
from tests.eval.sets import MissingDataError


def turn(dia_id: str, text: str, *, caption: str | None = None) -> dict[str, str]:
    said = {"dia_id": dia_id, "speaker": "Ann" if dia_id.endswith("1") else "Bo", "text": text}
    return said | ({"blip_caption": caption} if caption else {})


def question(text: str, category: int, *evidence: str) -> dict[str, Any]:
    return {"question": text, "category": category, "evidence": list(evidence)}


def conversation(sample_id: str) -> dict[str, Any]:
    return {
        "sample_id": sample_id,
        "conversation": {
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [turn("D1:1", "Hi."), turn("D1:2", "Look!", caption="a cat")],
            "session_2_date_time": "12:09 am on 13 August, 2023",  # announced, and nothing said
            "session_3_date_time": "9:55 am on 22 October, 2023",
            "session_3": [turn("D3:1", "Bye.")],
        },
        "qa": [
            question("What did Bo show?", 4, "D1:2"),
            question("What did Ann say?", 1, "D1:1; D3:01", "D9:9"),
            question("Trick?", 5, "D1:1"),
            question("Unknown?", 2, "D7:7", "D"),
            question("Nothing?", 3),
        ],
    }


@pytest.fixture
def locomo(tmp_path: Path) -> Path:
    (tmp_path / "locomo10.json").write_text(json.dumps([conversation(f"conv-{n}") for n in range(6)]))
    return tmp_path


class TestLocomo:
    @pytest.mark.parametrize(
        ("evidence", "turns"),
        [
            (["D8:6"], {"D8:6"}),
            (["D8:6; D9:17"], {"D8:6", "D9:17"}),
            (["D9:1 D4:4 D4:6"], {"D9:1", "D4:4", "D4:6"}),
            (["D:11:26"], {"D11:26"}),
            (["D30:05", "D10:10"], {"D30:5", "D10:10"}),
            (["D"], set[str]()),
        ],
    )
    def test_evidence_is_repaired(self, evidence: list[str], turns: set[str]) -> None:
        assert evidence_turns(evidence) == turns

    def test_a_turn_is_a_memory_with_its_speaker_session_and_time(self, locomo: Path) -> None:
        first, second, third = locomo_sets(locomo)[0].collection.memories[:3]
        assert (second.external_id, second.content) == ("conv-0/D1:2", "Look! [image: a cat]")
        assert (second.actor, second.user_id, second.session_id) == ("Bo", "conv-0", "session_1")
        assert first.occurred_at == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
        assert second.occurred_at == datetime(2023, 5, 8, 13, 56, 1, tzinfo=UTC)
        assert (third.session_id, third.occurred_at) == ("session_3", datetime(2023, 10, 22, 9, 55, tzinfo=UTC))

    def test_questions_without_evidence_or_answer_are_left_out(self, locomo: Path) -> None:
        asked = locomo_sets(locomo)[0].questions
        assert [(q.text, q.category) for q in asked if q.user_id == "conv-5"] == [
            ("What did Bo show?", "single-hop"),
            ("What did Ann say?", "multi-hop"),
        ]
        assert asked[1].gold == {"conv-0/D1:1", "conv-0/D3:1"}

    def test_the_first_five_conversations_are_tuned_on(self, locomo: Path) -> None:
        parts = {q.user_id: q.part for q in locomo_sets(locomo)[0].questions}
        assert [parts[f"conv-{n}"] for n in range(6)] == [*["tuned"] * 5, "held_out"]

    def test_open_questions_are_the_same_for_everybody(self, locomo: Path) -> None:
        scoped, everywhere = locomo_sets(locomo)
        assert everywhere.collection is scoped.collection
        assert [q.gold for q in everywhere.questions] == [q.gold for q in scoped.questions]
        assert {q.user_id for q in everywhere.questions} == {None}

    def test_sessions_are_told_apart_by_user(self, locomo: Path) -> None:
        session_of = locomo_sets(locomo)[0].collection.session_of
        assert session_of["conv-0/D1:1"] == session_of["conv-0/D1:2"] != session_of["conv-1/D1:1"]

    def test_a_quick_run_keeps_all_memories(self, locomo: Path) -> None:
        whole = locomo_sets(locomo)[0]
        assert len(shortened(whole).questions) == 2
        assert shortened(whole).collection is whole.collection


DIALOGUE = {
    "dialogue": [
        "<BOD>\n",
        '<Bart>:"我有点紧张"\n',
        '<Assistant>:"深呼吸"\n',
        '<Bart>: "穿什么好呢？"\n',
        '<Assistant>:"你记得圣诞节吗？"\n',
        "<EOD>\n",
    ],
    "test-turn": [4],
    "relevant-id": [1, 3],
    "user-id": 2,
}


@pytest.fixture
def madial(tmp_path: Path) -> Path:
    folder = tmp_path / "madial"
    folder.mkdir()
    memory = {"time": "2023-12-25", "scene": "活动类", "emotion": "开心", "event": "跳舞"}
    lines = [json.dumps({name: memory | {"user-id": 2, "id": name}}) for name in ("1", "3")]
    (folder / "MADial-Bench-zh-memory.json").write_text("\n".join(lines) + "\n\n")
    (folder / "MADial-Bench-en-memory.json").write_text(json.dumps({"3": memory | {"event": "danced"}}))
    for language in ("zh", "en"):
        (folder / f"MADial-Bench-{language}-dialogue.json").write_text(f"{json.dumps(DIALOGUE)}\n" * 3)
    return tmp_path


class TestMadial:
    def test_the_query_ends_before_the_turn_that_needs_memories(self) -> None:
        assert query_of(DIALOGUE, users_turns_only=True) == "Bart: 我有点紧张\nBart: 穿什么好呢？"
        assert query_of(DIALOGUE, users_turns_only=False).splitlines()[1] == "Assistant: 深呼吸"

    def test_memories_belong_to_their_user_in_both_languages(self, madial: Path) -> None:
        (memory,) = madial_set(madial, "en").collection.memories
        assert (memory.external_id, memory.content, memory.user_id) == ("3", "danced", "user 2")
        assert memory.occurred_at == datetime(2023, 12, 25, tzinfo=UTC)

    def test_every_second_dialogue_is_held_out(self, madial: Path) -> None:
        asked = madial_set(madial, "zh").questions
        assert [q.part for q in asked] == ["tuned", "held_out", "tuned"]
        assert (asked[0].gold, asked[0].user_id) == ({"1", "3"}, "user 2")


def squad(language: str) -> str:
    paragraphs = [
        {"context": f"{language} {n}", "qas": [{"question": q} for q in (f"{language} {n}a?", "", f"{language} {n}b?")]}
        for n in range(2)
    ]
    return json.dumps({"data": [{"paragraphs": [paragraph]} for paragraph in paragraphs]})


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    for folder in ("xquad", "cmrc2018"):
        (tmp_path / folder).mkdir()
    for language in ("zh", "en"):
        (tmp_path / "xquad" / f"xquad.{language}.json").write_text(squad(language))
    (tmp_path / "cmrc2018" / "cmrc2018_trial.json").write_text(squad("zh"))
    return tmp_path


class TestPassages:
    def test_questions_that_have_a_text_are_asked_to_paragraphs_of_the_other_language(self, passages: Path) -> None:
        english_to_chinese = next(one for one in xquad_sets(passages) if one.key == "xquad.en_zh")
        assert [memory.content for memory in english_to_chinese.collection.memories] == ["zh 0", "zh 1"]
        assert [q.text for q in english_to_chinese.questions] == ["en 0a?", "en 0b?", "en 1a?", "en 1b?"]
        assert [q.gold for q in english_to_chinese.questions] == [{"0"}, {"0"}, {"1"}, {"1"}]

    def test_an_english_model_is_not_asked_across_languages(self, passages: Path) -> None:
        sets = [*xquad_sets(passages), cmrc_set(passages)]
        assert [one.key for one in sets_for("bge-small-en-v1.5", sets)] == ["xquad.zh_zh", "xquad.en_en", "cmrc"]
        assert len(sets_for("multilingual-e5-small", sets)) == 5


class TestMissingData:
    @pytest.mark.parametrize("name", SETS)
    def test_says_what_to_put_where(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(MissingDataError, match=rf"^{tmp_path}/\S+ is not there. Get it from github.com/"):
            SETS[name](tmp_path)

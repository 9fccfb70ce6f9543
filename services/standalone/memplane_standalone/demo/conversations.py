"""Conversations with questions whose answers are known to lie in certain turns."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from memplane_core.contracts.memories import MemoryWrite

_EVIDENCE = re.compile(r"D:?(\d+):0*(\d+)")
"""Of the ways in which the data set writes `D8:6`: also `D:8:6`, `D8:06`, and several in one string."""

_SINGLE_HOP = 4


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Something said. `id` is unique within the conversation; `session` counts from 1 and began at `session_at`."""

    id: str
    session: int
    session_at: datetime
    speaker: str
    text: str


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and the ids of the turns that answer it."""

    text: str
    evidence: list[str]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What two people said over several sessions."""

    id: str
    turns: list[Turn]
    questions: list[Question]


class BadConversation(Exception):
    """The file is not what it should be; says what is wrong with it."""


def bundled() -> Conversation:
    """The small one that comes with Memplane."""
    return msgspec.json.decode(
        files("memplane_standalone.demo").joinpath("sample.json").read_bytes(), type=Conversation
    )


def from_locomo(path: Path, number: int = 0) -> Conversation:
    """A conversation of the LoCoMo data set.

    Its questions are the single-hop ones, which a turn by itself can answer.

    Args:
        path: Its `locomo10.json`.
        number: Which, from 0.

    Raises:
        BadConversation: The file is not that, or has no such conversation.
    """
    try:
        samples = msgspec.json.decode(path.read_bytes(), type=list[_Sample])
        turns = list(_turns(samples[number].conversation))
    except (OSError, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise BadConversation(f"{path} is not LoCoMo's file of conversations: {error}") from error
    except IndexError:
        raise BadConversation(f"{path} has no conversation {number}") from None
    known = {turn.id for turn in turns}
    questions = [
        Question(text=item.question, evidence=evidence)
        for item in samples[number].qa
        if item.category == _SINGLE_HOP and (evidence := _evidence(item.evidence, known))
    ]
    return Conversation(id=samples[number].sample_id, turns=turns, questions=questions)


def memories(conversation: Conversation) -> list[MemoryWrite]:
    """One memory a turn, in order, a second apart; the turn's id is its external id."""
    made: list[MemoryWrite] = []
    session, second = 0, 0
    for turn in conversation.turns:
        session, second = turn.session, second + 1 if turn.session == session else 0
        made.append(
            MemoryWrite(
                content=turn.text,
                external_id=turn.id,
                actor=turn.speaker,
                user_id=conversation.id,
                session_id=f"session-{session}",
                occurred_at=turn.session_at + timedelta(seconds=second),
            )
        )
    return made


def spread(questions: list[Question], count: int) -> list[Question]:
    """`count` of the questions at even distances, all where there are no more."""
    if len(questions) <= count:
        return questions
    return [questions[index * len(questions) // count] for index in range(count)]


class _Question(msgspec.Struct):
    question: str
    category: int
    evidence: list[str] = []


class _Turn(msgspec.Struct):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str = ""


class _Sample(msgspec.Struct):
    sample_id: str
    conversation: dict[str, Any]
    qa: list[_Question]


def _turns(raw: dict[str, Any]) -> Iterator[Turn]:
    number = 1
    while f"session_{number}_date_time" in raw:
        began = datetime.strptime(raw[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for turn in msgspec.convert(raw.get(f"session_{number}", []), type=list[_Turn]):
            caption = f" [image: {turn.blip_caption}]" if turn.blip_caption else ""
            yield Turn(id=turn.dia_id, session=number, session_at=began, speaker=turn.speaker, text=turn.text + caption)
        number += 1


def _evidence(given: list[str], known: set[str]) -> list[str]:
    named = (f"D{match[1]}:{match[2]}" for text in given for match in _EVIDENCE.finditer(text))
    return [turn for turn in dict.fromkeys(named) if turn in known]

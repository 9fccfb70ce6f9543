"""MADial-Bench: dated memories of two people, and dialogues in which an assistant should come to speak of some."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.eval.sets import Collection, EvalSet, Question, read_data

from memplane_core.contracts.memories import MemoryWrite

_SPEAKER: Final = re.compile(r'^<(.*?)>:\s*"?')
_ASSISTANT: Final = "Assistant"


def madial_set(folder: Path, language: str) -> EvalSet:
    """The dialogues of one language, each searched for in its user's memories.

    The query is what was said before the turn that needs memories: in Chinese the user's turns, in English all turns,
    as published. Every second dialogue, from the first, was looked at for choosing weights.

    Args:
        folder: Of all data.
        language: `zh` or `en`.

    Raises:
        MissingDataError: A file is not there.
    """
    users = {name: memory["user-id"] for name, memory in _memories(folder, "zh").items()}
    memories = [
        MemoryWrite(
            external_id=name,
            content=memory["event"],
            user_id=_user(users[name]),
            scene=[memory["scene"]],
            occurred_at=datetime.fromisoformat(memory["time"]).replace(tzinfo=UTC),
        )
        for name, memory in _memories(folder, language).items()
    ]
    questions = [
        Question(
            text=query_of(dialogue, users_turns_only=language == "zh"),
            gold=frozenset(str(name) for name in dialogue["relevant-id"]),
            user_id=_user(dialogue["user-id"]),
            part="held_out" if n % 2 else "tuned",
        )
        for n, dialogue in enumerate(_lines(folder, f"MADial-Bench-{language}-dialogue.json"))
    ]
    return EvalSet(
        key=f"madial_{language}",
        collection=Collection(name=f"madial_{language}", memories=memories),
        questions=questions,
        languages=frozenset({language}),
    )


def query_of(dialogue: dict[str, Any], *, users_turns_only: bool) -> str:
    """What was said before the first turn that needs memories, a line a turn, as `Bart: Hello`."""
    before = dialogue["dialogue"][1 : dialogue["test-turn"][0]]
    said = [_SPEAKER.sub(r"\1: ", turn.strip()).rstrip('"') for turn in before]
    return "\n".join(turn for turn in said if not (users_turns_only and turn.startswith(_ASSISTANT)))


def _memories(folder: Path, language: str) -> dict[str, dict[str, Any]]:
    """By their name. The English file does not say whose they are; the Chinese one has the same names."""
    merged: dict[str, dict[str, Any]] = {}
    for line in _lines(folder, f"MADial-Bench-{language}-memory.json"):
        merged.update(line)
    return merged


def _lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_data(folder, f"madial/{name}").splitlines() if line.strip()]


def _user(number: int) -> str:
    return f"user {number}"

"""LoCoMo: long conversations of two people, and questions whose evidence is single turns of them."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tests.eval.sets import Collection, EvalSet, Question, read_data

from memplane_core.contracts.memories import MemoryWrite

FILE: Final = "locomo10.json"
CATEGORIES: Final = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
"""Adversarial questions, the fifth, have no answer and are left out."""

TUNED: Final = 5
"""So many conversations, from the first, were looked at for choosing weights."""

_DATE: Final = "%I:%M %p on %d %B, %Y"
_TURN: Final = re.compile(r"D:?(\d+):0*(\d+)")
"""A turn as evidence names it: `D8:6; D9:17`, `D:11:26` and `D30:05` occur beside `D8:6`."""


def locomo_sets(folder: Path) -> list[EvalSet]:
    """The questions within their own conversation (`locomo`), and the same among all conversations (`locomo_open`).

    Raises:
        MissingDataError: The file is not there.
    """
    memories: list[MemoryWrite] = []
    questions: list[Question] = []
    for n, sample in enumerate(json.loads(read_data(folder, FILE))):
        written = list(_turns(sample))
        memories += written
        names = {memory.external_id for memory in written if memory.external_id}
        questions += _questions(sample, names, tuned=n < TUNED)
    session_of = {str(memory.external_id): f"{memory.user_id}/{memory.session_id}" for memory in memories}
    collection = Collection(name="locomo", memories=memories, session_of=session_of)
    everywhere = [Question(text=q.text, gold=q.gold, part=q.part, category=q.category) for q in questions]
    return [
        EvalSet(key="locomo", collection=collection, questions=questions),
        EvalSet(key="locomo_open", collection=collection, questions=everywhere),
    ]


def evidence_turns(evidence: list[str]) -> set[str]:
    """The turns that evidence names, as `D8:6`, whether they exist or not."""
    return {f"D{match[1]}:{match[2]}" for text in evidence for match in _TURN.finditer(text)}


def _turns(sample: dict[str, Any]) -> Iterator[MemoryWrite]:
    """A memory for each turn, in order; the turns of a session are a second apart, so that their order is kept."""
    conversation, user = sample["conversation"], sample["sample_id"]
    n = 1
    while f"session_{n}" in conversation or f"session_{n}_date_time" in conversation:
        turns: list[dict[str, Any]] = conversation.get(f"session_{n}") or []
        began = datetime.strptime(conversation[f"session_{n}_date_time"], _DATE).replace(tzinfo=UTC)
        for second, turn in enumerate(turns):
            caption = turn.get("blip_caption")
            yield MemoryWrite(
                external_id=f"{user}/{turn['dia_id']}",
                content=turn["text"] + (f" [image: {caption}]" if caption else ""),
                actor=turn["speaker"],
                user_id=user,
                session_id=f"session_{n}",
                occurred_at=began + timedelta(seconds=second),
            )
        n += 1


def _questions(sample: dict[str, Any], names: set[str], *, tuned: bool) -> Iterator[Question]:
    """Those that have evidence among the turns."""
    user = sample["sample_id"]
    for asked in sample["qa"]:
        gold = {f"{user}/{turn}" for turn in evidence_turns(asked.get("evidence") or [])} & names
        if asked["category"] in CATEGORIES and gold:
            yield Question(
                text=asked["question"],
                gold=frozenset(gold),
                user_id=user,
                part="tuned" if tuned else "held_out",
                category=CATEGORIES[asked["category"]],
            )

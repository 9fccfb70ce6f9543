"""What an evaluation is made of: memories to write, questions to ask, and what each should find."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from memplane_core.contracts.memories import MemoryWrite

Part = Literal["tuned", "held_out"]
"""Whether weights were chosen with a look at this question."""

SOURCES: Final = {
    "locomo10.json": "github.com/snap-research/locomo, data/locomo10.json",
    "madial": "github.com/hejunqing/MADial-Bench, its four MADial-Bench-*.json",
    "xquad": "github.com/google-deepmind/xquad, its xquad.zh.json and xquad.en.json",
    "cmrc2018": "github.com/ymcui/cmrc2018, its cmrc2018_trial.json",
}
"""Where each part of the data folder comes from."""


class MissingDataError(Exception):
    """A file of the data folder is not there; the message says what to put where."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A search and what it should find.

    Attributes:
        gold: `external_id`s, at least one.
        user_id: Whose memories are searched; everybody's where it is None.
    """

    text: str
    gold: frozenset[str]
    user_id: str | None = None
    part: Part | None = None
    category: str | None = None


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """The memories of one tenant, each with an `external_id` of its own.

    Attributes:
        session_of: By `external_id`; empty where memories have no session.
    """

    name: str
    memories: list[MemoryWrite]
    session_of: Mapping[str, str] = {}


class EvalSet(msgspec.Struct, frozen=True, kw_only=True):
    """Questions to a collection.

    Attributes:
        key: As in the results, with a dot before a part: `xquad.zh_zh`.
        languages: Of the memories and the questions.
    """

    key: str
    collection: Collection
    questions: list[Question]
    languages: frozenset[str] = frozenset({"en"})


def read_data(folder: Path, name: str) -> str:
    """The text of a file in the data folder.

    Raises:
        MissingDataError: It is not there.
    """
    path = folder / name
    if path.is_file():
        return path.read_text(encoding="utf-8")
    part = Path(name).parts[0]
    raise MissingDataError(
        f"{path} is not there. Get it from {SOURCES[part]}, put it at {path}, "
        f"or say with --data which folder has it; --sets leaves out what you do not have."
    )

"""Which sets there are, which model is asked which, and what a quick run leaves out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from tests.eval.locomo import locomo_sets
from tests.eval.madial import madial_set
from tests.eval.passages import cmrc_set, xquad_sets
from tests.eval.sets import EvalSet

SETS: Final[dict[str, Callable[[Path], list[EvalSet]]]] = {
    "locomo": locomo_sets,
    "madial_zh": lambda folder: [madial_set(folder, "zh")],
    "madial_en": lambda folder: [madial_set(folder, "en")],
    "xquad": xquad_sets,
    "cmrc": lambda folder: [cmrc_set(folder)],
}
"""By the name that `--sets` takes: how to read them from the data folder."""

MODELS: Final = {
    "multilingual-e5-small": "multilingual-e5-small",
    "bge-small-en-v1.5": "bge-small-en",
    "all-MiniLM-L6-v2": "all-MiniLM-L6-v2",
}
"""The models' names in the results."""

ENGLISH_ONLY: Final = frozenset({"bge-small-en-v1.5", "all-MiniLM-L6-v2"})
_QUICK: Final = 7
"""Every so many-th question is in a quick run. Odd, so that both halves of MADial-Bench are."""


def sets_for(model: str, sets: Sequence[EvalSet]) -> list[EvalSet]:
    """Those that make sense for the model: one that knows only English is not asked across languages."""
    return [one for one in sets if model not in ENGLISH_ONLY or len(one.languages) == 1]


def shortened(whole: EvalSet) -> EvalSet:
    """The same memories with a seventh of the questions, from all conversations and categories."""
    return msgspec.structs.replace(whole, questions=whole.questions[::_QUICK])

"""What a run found, in the form of `eval.json`: percent with one decimal."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType
from tests.eval.metrics import Scores, mean_percent, scores_of
from tests.eval.sets import EvalSet, Part, Question


class SetResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A set with halves.

    Attributes:
        tuned: Of the half that was looked at for choosing weights.
        held_out: Of the other.
        per_category: Of all questions of a category.
        per_category_held_out: Of the half that was not looked at.
    """

    all: Scores
    tuned: Scores
    held_out: Scores
    per_category: dict[str, Scores] | UnsetType = UNSET
    per_category_held_out: dict[str, Scores] | UnsetType = UNSET


class ModelResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All sets that a model was asked; `xquad` by language of question and paragraphs, as `en_zh`."""

    locomo: SetResult | UnsetType = UNSET
    locomo_open: SetResult | UnsetType = UNSET
    madial_zh: SetResult | UnsetType = UNSET
    madial_en: SetResult | UnsetType = UNSET
    xquad: dict[str, Scores] | UnsetType = UNSET
    cmrc: Scores | UnsetType = UNSET

    def keep(self, key: str, result: SetResult | Scores) -> None:
        """Put the result of a set where its key says."""
        name, _, part = key.partition(".")
        if not part:
            setattr(self, name, result)
        elif isinstance(result, Scores):
            self.xquad = {**(self.xquad or {}), part: result}

    def scores(self, key: str, half: Part | None = None) -> Scores | None:
        """The figures of a set, or of one of its halves; None where it was not asked."""
        name, _, part = key.partition(".")
        found: SetResult | Scores | dict[str, Scores] | UnsetType | None = getattr(self, name)
        if isinstance(found, dict):
            found = found.get(part)
        if isinstance(found, SetResult):
            return getattr(found, half or "all")
        return found if isinstance(found, Scores) else None


class Result(msgspec.Struct, frozen=True):
    """A whole run, by the model's short name."""

    models: dict[str, ModelResult]


def result_of(evaluated: EvalSet, ranked: Sequence[Sequence[str]]) -> SetResult | Scores:
    """The figures of a set: with its halves and categories where it has them.

    Args:
        evaluated: The set.
        ranked: What each of its questions found, best first.
    """
    session_of = evaluated.collection.session_of
    asked = [
        _Asked(question, scores_of(found, question.gold, session_of))
        for question, found in zip(evaluated.questions, ranked, strict=True)
    ]
    everything = _mean(asked)
    if any(question.part is None for question in evaluated.questions):
        return everything
    held_out = [one for one in asked if one.question.part == "held_out"]
    return SetResult(
        all=everything,
        tuned=_mean([one for one in asked if one.question.part == "tuned"]),
        held_out=_mean(held_out),
        per_category=_by_category(asked),
        per_category_held_out=_by_category(held_out),
    )


class _Asked(msgspec.Struct, frozen=True):
    question: Question
    scores: Scores


def _mean(asked: Sequence[_Asked]) -> Scores:
    return mean_percent(one.scores for one in asked)


def _by_category(asked: Sequence[_Asked]) -> dict[str, Scores] | UnsetType:
    categories = sorted({one.question.category for one in asked if one.question.category is not None})
    if not categories:
        return UNSET
    return {name: _mean([one for one in asked if one.question.category == name]) for name in categories}

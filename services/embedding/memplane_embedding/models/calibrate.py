"""What a model's cosines mean: its span and its anchors, measured on pairs of our own."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from memplane_core.domain.embedding import InputType
from memplane_core.domain.index import FloatArray
from memplane_core.domain.memory import head_of
from memplane_embedding.model import OnnxModel
from memplane_embedding.models.pairs import NONSENSE, PAIRS, Pair

EDGE: Final = 99
"""Percentile of unrelated pairs that is relevance 0: the nearest of some hundred unrelated memories is about there. The
same percentile of matching pairs is relevance 1."""

DEVIATIONS: Final = 8
"""Standard deviations of unrelated pairs in a span. It is the most that ranking takes; a pool of one topic has less."""

_ACTORS: Final = ("Ann", "Tom", "Omar")
_BEGINNING: Final = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
_SPAN_STEP: Final = 0.05

Embed = Callable[[str, str, InputType], FloatArray]
"""The unit vector of a text with a head before it."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How a model sees our pairs.

    Attributes:
        span: `DEVIATIONS` standard deviations of the cosines of unrelated English pairs, to the next 0.05.
        anchor_low: Cosine that an unrelated English pair hardly passes.
        anchor_high: Cosine that a matching English pair hardly passes.
        anchor_cjk: How much higher the low anchor lies between Chinese texts.
        matching: Median cosine of the matching English pairs.
        matching_cjk: The same in Chinese.
        passing: Part of all matching pairs of one language whose relevance by meaning alone is 0.3 or more.
        nonsense: Part of nonsense queries whose best memory stays below that.
    """

    name: str
    span: float
    anchor_low: float
    anchor_high: float
    anchor_cjk: float
    matching: float
    matching_cjk: float
    passing: float
    nonsense: float


def calibrate(
    name: str, embed: Embed, pairs: Sequence[Pair] = PAIRS, nonsense: Sequence[str] = NONSENSE
) -> Calibration:
    """Measure a model on pairs; each pair's question and every other pair's memory are an unrelated pair."""
    english = _cosines(embed, [pair.question for pair in pairs], [pair.memory for pair in pairs])
    chinese = _cosines(embed, [pair.question_zh for pair in pairs], [pair.memory_zh for pair in pairs])
    same = np.eye(len(pairs), dtype=np.bool_)
    low = float(np.percentile(english[~same], EDGE))
    high = float(np.percentile(english[same], EDGE))
    shift = float(np.percentile(chinese[~same], EDGE)) - low
    passed = [*(english[same] >= _floor(low, high)), *(chinese[same] >= _floor(low + shift, high + shift))]
    stayed = [
        bool((_cosines(embed, [query], _memories(pairs, query)) < _floor(low + moved, high + moved)).all())
        for query in nonsense
        for moved in [0.0 if query.isascii() else shift]
    ]
    return Calibration(
        name=name,
        span=round(float(np.ceil(DEVIATIONS * english[~same].std() / _SPAN_STEP)) * _SPAN_STEP, 2),
        anchor_low=round(low, 3),
        anchor_high=round(high, 3),
        anchor_cjk=round(shift, 3),
        matching=round(float(np.median(english[same])), 3),
        matching_cjk=round(float(np.median(chinese[same])), 3),
        passing=float(np.mean(passed)),
        nonsense=float(np.mean(stayed)),
    )


def calibrate_folder(folder: Path) -> Calibration:
    """Measure the model in a folder. Raises ModelFolderError where it cannot be used."""
    model = OnnxModel(folder)

    def embed(text: str, head: str, input_type: InputType) -> FloatArray:
        return model.embed(model.split(text, head=head, input_type=input_type).windows[0].ids)

    return calibrate(model.manifest.name, embed)


def as_table(rows: Sequence[Calibration]) -> str:
    """Calibrations as a Markdown table."""
    lines = [
        "| model | span | anchors | shift in Chinese | median match | in Chinese | matches from 0.3 | nonsense below |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {its.name} | {its.span:.2f} | {its.anchor_low:.3f} to {its.anchor_high:.3f} | {its.anchor_cjk:+.3f} "
        f"| {its.matching:.3f} | {its.matching_cjk:.3f} | {its.passing:.0%} | {its.nonsense:.0%} |"
        for its in rows
    ]
    return "\n".join(lines) + "\n"


def _cosines(embed: Embed, queries: Sequence[str], memories: Sequence[str]) -> FloatArray:
    """Shape (queries, memories)."""
    asked = np.stack([embed(query, "", "query") for query in queries])
    told = np.stack([embed(memory, _head(n), "passage") for n, memory in enumerate(memories)])
    return asked @ told.T


def _head(n: int) -> str:
    return head_of(_ACTORS[n % len(_ACTORS)], _BEGINNING + timedelta(days=11 * n, minutes=37 * n))


def _memories(pairs: Sequence[Pair], query: str) -> list[str]:
    return [pair.memory if query.isascii() else pair.memory_zh for pair in pairs]


def _floor(low: float, high: float) -> float:
    return low + 0.3 * (high - low)

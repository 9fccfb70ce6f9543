"""The parts of a score as what a bar shows: how much each added to it."""

from typing import Any, Final

import msgspec

from memplane_core.contracts.memories import FoundMemory, ScoreParts
from memplane_core.domain.ranking import Preset, Weights

_EXACT: Final = 0.005
"""Parts that add up to the score but for less than this are those that it was made of."""

SIGNALS: Final = ("dense", "lexical", "actor", "dated", "session", "informativeness")
"""What `match` is made of."""


class Piece(msgspec.Struct, frozen=True):
    """A piece of a bar.

    Attributes:
        share: Of the score, which ends at 1 for the weights and at 2.15 for a preset.
        start: Where it begins in the bar, in percent of its whole length.
        width: In percent of the whole length.
    """

    name: str
    share: float
    start: float
    width: float


class Ranking(msgspec.Struct, frozen=True):
    """How a search was ranked, where the policy could be read."""

    weights: Weights = Weights()
    preset: Preset | None = None

    def pieces(self, found: FoundMemory) -> list[Piece]:
        """What each part added to a score; none where they do not add up to it."""
        parts = found.explain
        if not isinstance(parts, ScoreParts):
            return []
        shares = self._shares(parts)
        if abs(sum(shares.values()) - found.score) > _EXACT:
            return []
        length = 2.15 if self.preset else 1.0
        pieces: list[Piece] = []
        start = 0.0
        for name, share in shares.items():
            width = max(0.0, 100 * share / length)
            pieces.append(Piece(name, share, round(start, 3), round(width, 3)))
            start += width
        return pieces

    def _shares(self, parts: ScoreParts) -> dict[str, float]:
        if self.preset == "dbgpt":
            return {"match": parts.cosine or 0.0, "recency": parts.recency, "importance": 0.15 * parts.importance}
        weights: dict[str, float] = msgspec.structs.asdict(self.weights)
        return {name: weight * getattr(parts, name) / self.weights.total for name, weight in weights.items()}


def signals(found: FoundMemory) -> dict[str, Any]:
    """The signals of likeness, by name."""
    return {name: getattr(found.explain, name) for name in SIGNALS} if found.explain else {}

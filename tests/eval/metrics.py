"""How good one ranking is, and how good many are: each figure 0..1 for a question, in percent for a set.

The definitions are those of the published baselines that the results stand beside: gains are binary, and a question's
recall is the share of its gold that is among the first k.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec
from msgspec import UNSET, UnsetType

RECALL_AT = (1, 3, 5, 10, 20)
NDCG_AT = 10
SESSIONS_AT = (5, 10)


class Scores(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={
        **{f"recall_{k}": f"recall@{k}" for k in RECALL_AT},
        **{f"session_recall_{k}": f"session_recall@{k}" for k in SESSIONS_AT},
        "ndcg_10": "ndcg@10",
    },
):
    """All figures of a question or of a set. The sessions' are absent where memories have none."""

    recall_1: float
    recall_3: float
    recall_5: float
    recall_10: float
    recall_20: float
    ndcg_10: float
    mrr: float
    session_recall_5: float | UnsetType = UNSET
    session_recall_10: float | UnsetType = UNSET


def recall(ranked: Sequence[str], gold: AbstractSet[str], k: int) -> float:
    """Share of the gold that is among the first k."""
    return sum(name in gold for name in ranked[:k]) / len(gold)


def ndcg(ranked: Sequence[str], gold: AbstractSet[str], k: int) -> float:
    """Discounted gain of the first k, by the most that k places could have."""
    gain = sum(1 / math.log2(n + 2) for n, name in enumerate(ranked[:k]) if name in gold)
    return gain / sum(1 / math.log2(n + 2) for n in range(min(k, len(gold))))


def reciprocal_rank(ranked: Sequence[str], gold: AbstractSet[str]) -> float:
    """1 by the place of the first that is gold; 0 where none is."""
    return next((1 / n for n, name in enumerate(ranked, 1) if name in gold), 0.0)


def scores_of(ranked: Sequence[str], gold: AbstractSet[str], session_of: Mapping[str, str]) -> Scores:
    """All figures of one question, 0..1.

    Args:
        ranked: Names of what was found, best first.
        gold: Names of what should be, at least one.
        session_of: Each memory's session; empty where there are none. Sessions rank by their best memory.
    """
    plain = Scores(
        recall_1=recall(ranked, gold, 1),
        recall_3=recall(ranked, gold, 3),
        recall_5=recall(ranked, gold, 5),
        recall_10=recall(ranked, gold, 10),
        recall_20=recall(ranked, gold, 20),
        ndcg_10=ndcg(ranked, gold, NDCG_AT),
        mrr=reciprocal_rank(ranked, gold),
    )
    if not session_of:
        return plain
    sessions = list(dict.fromkeys(session_of[name] for name in ranked))
    gold_sessions = {session_of[name] for name in gold}
    return msgspec.structs.replace(
        plain,
        session_recall_5=recall(sessions, gold_sessions, 5),
        session_recall_10=recall(sessions, gold_sessions, 10),
    )


def mean_percent(of: Iterable[Scores]) -> Scores:
    """Means over questions, in percent with one decimal.

    Raises:
        ValueError: There is no question.
    """
    every = list(of)
    if not every:
        raise ValueError("there is no question to take the mean of")
    means: dict[str, float] = {}
    for name in Scores.__struct_fields__:
        values = [value for scores in every if isinstance(value := getattr(scores, name), float)]
        if values:
            means[name] = round(100 * math.fsum(values) / len(values), 1)
    return Scores(**means)

"""What the results stand beside: baselines measured outside of the platform, and the targets of the design."""

from typing import Final

import msgspec
from tests.eval.results import Result


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A known way to search the same texts, in percent; None where it is not known.

    Attributes:
        key: The set, as in the results.
        how: What was done.
    """

    key: str
    how: str
    recall_1: float | None = None
    recall_5: float | None = None
    recall_10: float | None = None
    recall_20: float | None = None
    ndcg_10: float | None = None
    session_recall_10: float | None = None
    held_out_recall_10: float | None = None


def _turns(how: str, *figures: float | None, key: str = "locomo") -> Baseline:
    names = ("recall_5", "recall_10", "recall_20", "ndcg_10", "session_recall_10", "held_out_recall_10")
    return Baseline(key=key, how=how, **dict(zip(names, figures, strict=False)))


_POOL: Final = "signals over a pool, outside of the platform"

BASELINES: Final = (
    _turns("BM25", 50.0, 57.9, 65.7, 44.6, 90.9),
    _turns("all-MiniLM-L6-v2 dense", 39.7, 49.7, 60.2, 34.4, 85.0),
    _turns("all-MiniLM-L6-v2 + BM25, RRF", 51.6, 61.1, 68.5, 45.3, 90.5),
    _turns("multilingual-e5-small dense", 45.3, 53.6, 61.4, 41.0, 88.2),
    _turns("multilingual-e5-small + BM25, RRF", 53.1, 60.7, 68.1, 47.2, 91.2),
    _turns("bge-small-en dense", 49.5, 59.5, 69.1, 43.8, 89.5),
    _turns("bge-small-en + BM25, RRF", 56.2, 65.1, 72.2, 49.9, 92.2),
    _turns(f"all-MiniLM-L6-v2, {_POOL}", 66.1, 75.1, 81.1, 57.4, 93.4, 73.8),
    _turns(f"multilingual-e5-small, {_POOL}", 70.1, 77.7, 83.4, 62.2, None, 77.1),
    _turns(f"bge-small-en, {_POOL}", 71.3, 79.0, 85.1, 63.0, None, 78.3),
    Baseline(key="locomo", how="text-embedding-3-small, as published by acolyte", recall_10=69.4),
    Baseline(key="locomo", how="bge-m3, as published by loomcycle", recall_10=66.75),
    _turns(f"all-MiniLM-L6-v2, {_POOL}", 63.9, 72.9, 79.4, 55.7, None, 71.9, key="locomo_open"),
    _turns(f"multilingual-e5-small, {_POOL}", None, 76.4, None, None, None, 75.7, key="locomo_open"),
    _turns(f"bge-small-en, {_POOL}", None, 78.0, None, None, None, 77.3, key="locomo_open"),
    Baseline(key="madial_zh", how="BM25", recall_10=61.7, ndcg_10=49.0),
    Baseline(key="madial_zh", how="all-MiniLM-L6-v2 dense", recall_10=23.4, ndcg_10=14.6),
    Baseline(key="madial_zh", how="multilingual-e5-small + BM25, RRF", recall_10=71.6, ndcg_10=59.9),
    Baseline(key="madial_zh", how=f"multilingual-e5-small, {_POOL}", recall_10=73.3, ndcg_10=60.2),
    Baseline(key="madial_zh", how="BGE-M3, as published", recall_10=71.4, ndcg_10=59.3),
    Baseline(key="madial_zh", how="OpenAI, as published", recall_10=82.4, ndcg_10=70.0),
    Baseline(key="xquad.zh_zh", how="multilingual-e5-small + BM25, RRF", recall_1=92.9, recall_10=99.3),
    Baseline(key="xquad.en_zh", how="multilingual-e5-small dense", recall_1=70.1, recall_10=96.2),
    Baseline(key="cmrc", how="BM25", recall_10=99.3),
    Baseline(key="cmrc", how="all-MiniLM-L6-v2 + BM25, RRF", recall_10=79.2),
)
"""Measured with the same definitions, on texts that begin with date and speaker, unless said to be published."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that is to be reached, in percent."""

    model: str
    key: str
    metric: str
    at_least: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A target, and what was measured."""

    what: str
    at_least: float
    measured: float

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.measured >= self.at_least


_E5: Final = "multilingual-e5-small"
_BGE: Final = "bge-small-en"

TARGETS: Final = (
    Target(model=_BGE, key="locomo", metric="recall_10", at_least=78.5),
    Target(model=_E5, key="locomo", metric="recall_10", at_least=77.0),
    Target(model=_BGE, key="locomo_open", metric="recall_10", at_least=76.5),
    Target(model=_E5, key="locomo_open", metric="recall_10", at_least=74.5),
    Target(model=_BGE, key="locomo", metric="session_recall_10", at_least=94.0),
    Target(model=_E5, key="locomo", metric="session_recall_10", at_least=94.0),
    Target(model=_E5, key="madial_zh", metric="recall_10", at_least=75.0),
    Target(model=_E5, key="madial_zh", metric="ndcg_10", at_least=62.0),
    Target(model=_E5, key="xquad.en_zh", metric="recall_10", at_least=96.0),
)
HELD_OUT_WITHIN: Final = 2.0
"""Points by which recall@10 of the held-out conversations may be below that of all."""


def verdicts(result: Result) -> list[Verdict]:
    """Every target that something was measured for."""
    judged: list[Verdict] = []
    for target in TARGETS:
        model = result.models.get(target.model)
        scores = model and model.scores(target.key)
        measured = getattr(scores, target.metric, None)
        if not model or not isinstance(measured, float):
            continue
        what = f"{target.model}, {target.key}, {target.metric.replace('_10', '@10')}"
        judged.append(Verdict(what=what, at_least=target.at_least, measured=measured))
        held_out = model.scores(target.key, "held_out")
        if held_out and target.key.startswith("locomo") and target.metric == "recall_10":
            least = round(measured - HELD_OUT_WITHIN, 1)
            judged.append(Verdict(what=f"{what}, held out", at_least=least, measured=held_out.recall_10))
    return judged

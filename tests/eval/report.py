"""The result as tables: for the terminal, and in Markdown."""

from collections.abc import Iterator
from typing import Final

import msgspec
from tests.bench.report import Table, markdown_lines
from tests.bench.results import Machine
from tests.eval.metrics import Scores
from tests.eval.references import BASELINES, Baseline, verdicts
from tests.eval.results import ModelResult, Result, SetResult
from tests.eval.sets import Part


class Column(msgspec.Struct, frozen=True):
    """A figure of a set or of one of its halves."""

    head: str
    metric: str
    half: Part | None = None


_TURNS: Final = (
    Column("recall@5", "recall_5"),
    Column("@10", "recall_10"),
    Column("@20", "recall_20"),
    Column("nDCG@10", "ndcg_10"),
    Column("MRR", "mrr"),
    Column("session recall@5", "session_recall_5"),
    Column("session recall@10", "session_recall_10"),
    Column("tuned recall@10", "recall_10", "tuned"),
    Column("held-out recall@10", "recall_10", "held_out"),
)
_HALVES: Final = (
    Column("recall@1", "recall_1"),
    Column("@3", "recall_3"),
    Column("@5", "recall_5"),
    Column("@10", "recall_10"),
    Column("@20", "recall_20"),
    Column("nDCG@10", "ndcg_10"),
    Column("MRR", "mrr"),
    Column("held-out recall@10", "recall_10", "held_out"),
    Column("held-out nDCG@10", "ndcg_10", "held_out"),
)
_TABLES: Final = {
    "locomo": ("LoCoMo, one user's memories", _TURNS),
    "locomo_open": ("LoCoMo, all ten users in one tenant, no filter", _TURNS),
    "madial_zh": ("MADial-Bench, Chinese", _HALVES),
    "madial_en": ("MADial-Bench, English", _HALVES),
    "xquad.zh_zh": ("XQuAD, Chinese questions, Chinese paragraphs", _HALVES[:-2]),
    "xquad.en_en": ("XQuAD, English questions, English paragraphs", _HALVES[:-2]),
    "xquad.en_zh": ("XQuAD, English questions, Chinese paragraphs", _HALVES[:-2]),
    "xquad.zh_en": ("XQuAD, Chinese questions, English paragraphs", _HALVES[:-2]),
    "cmrc": ("CMRC 2018 trial", _HALVES[:-2]),
}


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was made.

    Attributes:
        options: As they were given, in words.
        quick: Whether only a part of the questions was asked: then targets mean nothing.
    """

    machine: Machine
    options: str
    quick: bool


def tables_of(result: Result, *, quick: bool) -> list[Table]:
    """All sets that were asked, each beside its baselines; then the categories and the targets."""
    tables = [table for key in _TABLES if (table := _set_table(result, key)).rows]
    tables += [table for key in ("locomo", "locomo_open") if (table := _categories(result, key)).rows]
    return tables if quick else [*tables, _targets(result)]


def markdown(result: Result, conditions: Conditions) -> str:
    """The same as a page."""
    lines = [_conditions_line(conditions), ""]
    for table in tables_of(result, quick=conditions.quick):
        lines += markdown_lines(table)
    return "\n".join(lines)


def _conditions_line(conditions: Conditions) -> str:
    """When, where and on what."""
    machine = conditions.machine
    return (
        f"{machine.at}, commit {machine.commit}; {machine.cores} cores of {machine.cpu}; {conditions.options}. "
        "All figures in percent."
    )


def _set_table(result: Result, key: str) -> Table:
    title, columns = _TABLES[key]
    rows = [
        [f"**{name}**", *(_figure(model.scores(key, column.half), column.metric) for column in columns)]
        for name, model in result.models.items()
        if model.scores(key)
    ]
    if rows:
        rows += [_baseline(baseline, columns) for baseline in BASELINES if baseline.key == key]
    return Table(title=title, head=["", *(column.head for column in columns)], rows=rows, left=1)


def _baseline(baseline: Baseline, columns: tuple[Column, ...]) -> list[str]:
    names = [f"held_out_{column.metric}" if column.half == "held_out" else column.metric for column in columns]
    unknown = [column.half == "tuned" for column in columns]
    return [
        baseline.how,
        *("" if no else _figure(baseline, name) for name, no in zip(names, unknown, strict=True)),
    ]


def _figure(of: Scores | Baseline | None, name: str) -> str:
    value = getattr(of, name, None)
    return f"{value:.1f}" if isinstance(value, float) else ""


def _categories(result: Result, key: str) -> Table:
    rows = [row for name, model in result.models.items() for row in _category_rows(name, model, key)]
    head = ["model", "category", "recall@5", "@10", "@20", "nDCG@10", "held-out recall@10"]
    return Table(title=f"{_TABLES[key][0]}: by category", head=head, rows=rows)


def _category_rows(name: str, model: ModelResult, key: str) -> Iterator[list[str]]:
    found = getattr(model, key)
    if not isinstance(found, SetResult) or not found.per_category:
        return
    for category, scores in found.per_category.items():
        held_out = (found.per_category_held_out or {}).get(category)
        figures = [_figure(scores, metric) for metric in ("recall_5", "recall_10", "recall_20", "ndcg_10")]
        yield [name, category, *figures, _figure(held_out, "recall_10")]


def _targets(result: Result) -> Table:
    rows = [
        [verdict.what, f"{verdict.at_least:.1f}", f"{verdict.measured:.1f}", "met" if verdict.met else "**missed**"]
        for verdict in verdicts(result)
    ]
    return Table(title="Against the targets", head=["", "at least", "measured", ""], rows=rows, left=1)

"""From rankings to `eval.json` and its tables."""

import json
from collections.abc import Mapping

import msgspec
import pytest
from tests.eval.api import batches
from tests.eval.metrics import Scores, mean_percent, scores_of
from tests.eval.references import Verdict, verdicts
from tests.eval.report import tables_of
from tests.eval.results import ModelResult, Result, SetResult, result_of
from tests.eval.sets import Collection, EvalSet, Part, Question

from memplane_core.contracts.memories import MemoryWrite


def asked(gold: str, *, part: Part | None = None, category: str | None = None) -> Question:
    return Question(text="?", gold=frozenset({gold}), part=part, category=category)


def a_set(key: str, *questions: Question, session_of: Mapping[str, str] | None = None) -> EvalSet:
    collection = Collection(name="c", memories=[], session_of=session_of or {})
    return EvalSet(key=key, collection=collection, questions=list(questions))


HALVES = a_set(
    "locomo",
    asked("a", part="tuned", category="temporal"),
    asked("b", part="held_out", category="temporal"),
    asked("b", part="held_out", category="multi-hop"),
    session_of={"a": "s", "b": "s"},
)
FOUND = [["a"], ["b"], ["a"]]


def percent(recall_10: float) -> Scores:
    """Scores that differ in one figure."""
    return msgspec.structs.replace(mean_percent([scores_of([], frozenset({"a"}), {})]), recall_10=recall_10)


class TestResult:
    def test_of_a_set_with_halves(self) -> None:
        result = result_of(HALVES, FOUND)
        assert isinstance(result, SetResult)
        assert (result.all.recall_1, result.tuned.recall_1, result.held_out.recall_1) == (66.7, 100.0, 50.0)
        assert {name: one.recall_1 for name, one in (result.per_category or {}).items()} == {
            "multi-hop": 0.0,
            "temporal": 100.0,
        }
        assert {name: one.recall_1 for name, one in (result.per_category_held_out or {}).items()} == {
            "multi-hop": 0.0,
            "temporal": 100.0,
        }

    def test_as_json(self) -> None:
        model = ModelResult()
        model.keep("locomo", result_of(HALVES, FOUND))
        model.keep("xquad.zh_zh", result_of(a_set("xquad.zh_zh", asked("0")), [["0"]]))
        model.keep("xquad.en_zh", result_of(a_set("xquad.en_zh", asked("0")), [["1", "0"]]))
        model.keep("cmrc", result_of(a_set("cmrc", asked("0")), [["0"]]))
        decoded = json.loads(msgspec.json.encode(Result({"bge-small-en": model})))["models"]["bge-small-en"]
        assert set(decoded) == {"locomo", "xquad", "cmrc"}
        assert decoded["locomo"]["held_out"]["session_recall@10"] == 100.0
        assert decoded["locomo"]["per_category"]["multi-hop"]["recall@10"] == 0.0
        assert {pair: scores["mrr"] for pair, scores in decoded["xquad"].items()} == {"zh_zh": 100.0, "en_zh": 50.0}
        assert decoded["cmrc"]["recall@1"] == 100.0


class TestReport:
    @pytest.fixture
    def result(self) -> Result:
        model = ModelResult()
        model.keep("locomo", SetResult(all=percent(78.5), tuned=percent(80.0), held_out=percent(76.4)))
        return Result({"bge-small-en": model})

    def test_targets_are_judged_where_something_was_measured(self, result: Result) -> None:
        what = "bge-small-en, locomo, recall@10"
        assert verdicts(result) == [
            Verdict(what=what, at_least=78.5, measured=78.5),
            Verdict(what=f"{what}, held out", at_least=76.5, measured=76.4),
        ]
        assert [verdict.met for verdict in verdicts(result)] == [True, False]

    def test_each_set_stands_beside_its_baselines(self, result: Result) -> None:
        (table, targets) = tables_of(result, quick=False)
        at_10 = table.head.index("@10")
        by_name = {row[0]: row[at_10] for row in table.rows}
        assert (by_name["**bge-small-en**"], by_name["BM25"]) == ("78.5", "57.9")
        assert {len(row) for row in table.rows} == {len(table.head)}
        assert targets.title == "Against the targets"

    def test_a_quick_run_is_not_judged(self, result: Result) -> None:
        assert [table.title for table in tables_of(result, quick=True)] == ["LoCoMo, one user's memories"]


class TestBatches:
    def test_keep_the_order_and_stay_small(self) -> None:
        memories = [MemoryWrite(content=f"{n:05} " + "汉" * 3_000) for n in range(5)]  # 9,006 bytes each
        assert [len(batch) for batch in batches(memories)] == [2, 2, 1]
        assert [memory for batch in batches(memories) for memory in batch] == memories

    def test_one_that_is_too_large_goes_alone(self) -> None:
        large, small = MemoryWrite(content="x" * 32_768), MemoryWrite(content="y" * 10_000)
        assert list(batches([small, large, small])) == [[small], [large], [small]]

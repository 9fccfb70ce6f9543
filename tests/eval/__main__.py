"""`make eval`: how much of what should be found is found, through the real API over Milvus Lite.

Starts stores and services of its own on free ports and stops them. Nothing is asserted about figures.
"""

import os
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from cyclopts import App
from msgspec import UNSET
from rich.console import Console
from tests.bench.machine import machine
from tests.bench.progress import Told
from tests.bench.report import show_table
from tests.eval.api import POOL, Mode, SearchOptions
from tests.eval.catalog import MODELS, SETS, shortened
from tests.eval.report import Conditions, markdown, tables_of
from tests.eval.results import ModelResult, Result
from tests.eval.run import DOORS, evaluate
from tests.eval.sets import EvalSet, MissingDataError

from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.stack import Stack

app = App(name="eval", help="Recall, beside baselines.", help_format="plaintext", result_action="return_value")
RERANKER: Final = {
    "MEMPLANE_EMBEDDING__RERANKER": "ms-marco-MiniLM-L-12-v2",
    "MEMPLANE_SEARCH__RERANK_TIMEOUT_S": "30",
}
"""Switched on, and waited for: a search that goes without it would measure something else."""

DATA: Final = Path(__file__).parents[3] / "shared" / "data"


@app.default
def run(
    *,
    models: str = ",".join(MODELS),
    sets: str = ",".join(SETS),
    data: Path = DATA,
    quick: bool = False,
    mode: Mode | None = None,
    candidates: int = POOL,
    rerank: bool = False,
    out: Path = Path("build"),
) -> int:
    """Measure, print tables, and write eval.json and eval.md.

    Parameters
    ----------
    models
        Which embedding models, with commas between.
    sets
        Which sets, with commas between: locomo, madial_zh, madial_en, xquad, cmrc.
    data
        Folder of the data; docs/evaluation.md says what is in it.
    quick
        A seventh of the questions.
    mode
        As a search takes it; its default when left out.
    candidates
        Size of the pool that is ranked.
    rerank
        Switch the reranker on and ask for it.
    out
        Folder of the results.
    """
    try:
        read = [one for name in _names(sets, SETS, "set") for one in SETS[name](data)]
        chosen = _names(models, MODELS, "model")
    except (MissingDataError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    options = SearchOptions(mode=mode or UNSET, candidates=candidates, rerank=rerank or UNSET)
    words = [
        f"pool of {candidates}",
        *([f"mode {mode}"] if mode else []),
        *(["reranked"] if rerank else []),
        *(["a seventh of the questions"] if quick else []),
    ]
    console = Console(width=None if sys.stdout.isatty() else 200)
    told = Told(console)
    began, load_before = datetime.now(UTC), os.getloadavg()[0]
    asked = [shortened(one) for one in read] if quick else read
    result = Result({})
    for model in chosen:
        result.models[MODELS[model]] = _evaluated(model, asked, options=options, told=told)
        measured = machine(began=began, load_before=load_before)
        conditions = Conditions(machine=measured, options=", ".join(words), quick=quick)
        _keep(result, conditions, out=out)  # also before the last: what is measured is not lost
        told.step(f"{model}: written to {out / 'eval.json'} and {out / 'eval.md'}")
    for table in tables_of(result, quick=quick):
        show_table(table, console)
    return 0


def _keep(result: Result, conditions: Conditions, *, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "eval.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    (out / "eval.md").write_text(markdown(result, conditions), encoding="utf-8")


def _names(given: str, known: Mapping[str, object], what: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return names


def _evaluated(model: str, sets: list[EvalSet], *, options: SearchOptions, told: Told) -> ModelResult:
    told.step(f"{model}: starting stores and services")
    env = RERANKER if options.rerank is True else {}
    with Stack(MilvusLite(), doors=DOORS, model=model, env=env) as stack:
        try:
            return uvloop.run(evaluate(stack, model, sets, options=options, told=told))
        except Exception:
            sys.stderr.write(stack.logs() + "\n")
            raise


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is stopped
    raise SystemExit(app())

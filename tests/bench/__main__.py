"""`make bench`: how long writes and searches take, each beside its peer in the same run.

Starts stores and services of its own on free ports and stops them. Nothing is asserted about times: they are for
comparing within one run.
"""

import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
import uvloop
from cyclopts import App
from rich.console import Console
from tests.bench.machine import machine
from tests.bench.progress import Told
from tests.bench.report import markdown, show
from tests.bench.results import Options, Result, StoreResult
from tests.bench.store import measure

from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.stack import Stack

app = App(
    name="bench", help="Writes and searches, beside their peers.", help_format="plaintext", result_action="return_value"
)

LITE: Final = "Milvus Lite"
SERVER: Final = "Milvus 2.3.5"


@app.default
def bench(
    *,
    store: Literal["lite", "server", "both"] = "both",
    memories: int | None = None,
    quick: bool = False,
    model: str = "all-MiniLM-L6-v2",
    out: Path = Path("build"),
) -> int:
    """Measure, print tables, and write bench.json and bench.md.

    Parameters
    ----------
    store
        Which Milvus.
    memories
        In the tenant that is searched; 10,000, or 1,000 when quick.
    quick
        Fewer of everything: under two minutes.
    model
        Embedding model, say multilingual-e5-small. The default is the fastest to load.
    out
        Folder of the results.
    """
    options = Options(
        stores=[LITE, SERVER] if store == "both" else [LITE if store == "lite" else SERVER],
        memories=memories or (1_000 if quick else 10_000),
        model=model,
        rounds=30 if quick else 200,
        pairs=40 if quick else 200,
        batch_rounds=1 if quick else 3,
        fresh=400 if quick else 1_000,
    )
    console = Console(width=None if sys.stdout.isatty() else 160)
    began, load_before = datetime.now(UTC), os.getloadavg()[0]
    told = Told(console)
    told.step(f"{os.cpu_count()} cores, load average {load_before:.1f}")
    stores = [_measured(name, options=options, told=told) for name in options.stores]
    result = Result(machine=machine(began=began, load_before=load_before), options=options, stores=stores)
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    (out / "bench.md").write_text(markdown(result))
    show(result, console)
    told.step(f"written to {out / 'bench.json'} and {out / 'bench.md'}")
    return 0


def _measured(name: str, *, options: Options, told: Told) -> StoreResult:
    told.step(f"{name}: starting stores and services")
    milvus = MilvusLite() if name == LITE else MilvusServer()
    with Stack(milvus, doors=2, model=options.model, durable=True) as stack:
        try:
            return uvloop.run(measure(stack, name, options=options, told=told))
        except Exception:
            sys.stderr.write(stack.logs() + "\n")
            raise


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is stopped
    raise SystemExit(app())

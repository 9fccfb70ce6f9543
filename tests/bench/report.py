"""The result as tables: for the terminal, and in Markdown."""

import statistics
from collections.abc import Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from tests.bench.results import Calls, Result, StoreResult


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A title, the columns' heads, and rows of text; all but the first `left` columns hold numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]
    left: int = 2


def tables_of(result: Result) -> list[Table]:
    """Everything that was measured."""
    stores = result.stores
    tables = [_times(stores), _batches(stores)]
    tables += [_stages(store, which) for store in stores for which in ("search", "write")]
    return [*tables, _cpu(stores), _calls(stores), _missed(stores)]


def show(result: Result, console: Console) -> None:
    """Print it; on whole lines where that is no terminal."""
    console.print(conditions(result), highlight=False)
    for table in tables_of(result):
        show_table(table, console)


def show_table(table: Table, console: Console) -> None:
    """Print one table."""
    shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for n, name in enumerate(table.head):
        shown.add_column(name, justify="left" if n < table.left else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


def markdown(result: Result) -> str:
    """The same as a page."""
    lines = [conditions(result), ""]
    for table in tables_of(result):
        lines += markdown_lines(table)
    return "\n".join(lines)


def markdown_lines(table: Table) -> list[str]:
    """One table under its title."""
    rule = ["---" if n < table.left else "---:" for n in range(len(table.head))]
    lines = [f"**{table.title}**", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (table.head, rule, *table.rows)]
    return [*lines, ""]


def conditions(result: Result) -> str:
    """When, where and on what."""
    machine, options = result.machine, result.options
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"{machine.at}, commit {machine.commit}; {machine.cores} cores of {machine.cpu}, {machine.memory_gb:.0f} GB, "
        f"load average {machine.load_before:.1f} before and {machine.load_after:.1f} after; "
        f"Python {machine.python}, {versions}; {options.memories:,} memories, model {options.model}, one caller, "
        f"{options.rounds} rounds, Postgres waiting for the disk and knowing its tables."
    )


def _times(stores: Sequence[StoreResult]) -> Table:
    rows = [
        [
            store.store,
            row.scenario,
            row.subject,
            f"{row.p50_ms:.1f}",
            f"{row.p95_ms:.1f}",
            "" if row.more_ms is None else f"{row.more_ms:+.1f}",
            "" if row.times is None else f"{row.times:.2f}",
        ]
        for store in stores
        for row in store.rows
    ]
    head = ["store", "what", "by", "p50 ms", "p95 ms", "p50 more", "times"]
    return Table(title="One request, beside its peer", head=head, rows=rows, left=3)


def _batches(stores: Sequence[StoreResult]) -> Table:
    rows: list[list[str]] = []
    for store in stores:
        for n, batch in enumerate(store.batches, 1):
            what = f"{n}, {batch.first} first"
            rows.append([store.store, what, f"{batch.batch:.0f}", f"{batch.embedder:.0f}", f"{batch.share:.0%}"])
        medians = [
            statistics.median(values) for values in zip(*((b.batch, b.embedder) for b in store.batches), strict=True)
        ]
        share = statistics.median(batch.share for batch in store.batches)
        rows.append([store.store, "median", f"{medians[0]:.0f}", f"{medians[1]:.0f}", f"{share:.0%}"])
    head = ["store", "round", "texts/s until indexed", "embedder alone", "share"]
    return Table(title="A batch of 1,000 new texts", head=head, rows=rows)


def _stages(store: StoreResult, which: str) -> Table:
    stages = store.search_stages if which == "search" else store.write_stages
    labels = list(dict.fromkeys(label for stage in stages for label in stage.ms))
    rows = [
        [stage.name, *("" if (ms := stage.ms.get(label)) is None else f"{ms:.2f}" for label in labels)]
        for stage in stages
    ]
    return Table(title=f"Stages of a {which}, {store.store}, p50 ms", head=["stage", *labels], rows=rows, left=1)


def _calls(stores: Sequence[StoreResult]) -> Table:
    rows = [
        [store.store, calls.service, calls.operation, _sent(calls), f"{calls.usual} of {calls.n}"]
        for store in stores
        for calls in store.calls
    ]
    return Table(title="What is sent", head=["store", "by", "for", "what", "in"], rows=rows, left=4)


def _sent(calls: Calls) -> str:
    return ", ".join(f"{count} x {name}" for name, count in calls.sent.items())


def _cpu(stores: Sequence[StoreResult]) -> Table:
    parts = list(dict.fromkeys(part for store in stores for cpu in store.cpu for part in cpu.ms))
    rows = [
        [store.store, cpu.operation, *(f"{cpu.ms[part]:.1f}" for part in parts), f"{sum(cpu.ms.values()):.1f}"]
        for store in stores
        for cpu in store.cpu
    ]
    return Table(title="Processor milliseconds for each", head=["store", "for a", *parts, "all"], rows=rows)


def _missed(stores: Sequence[StoreResult]) -> Table:
    rows = [[store.store, str(store.pairs), str(store.missed), f"{store.load_s:.0f}"] for store in stores]
    head = ["store", "writes searched for at once by another process", "missed", "s to load and index"]
    return Table(title="Own writes", head=head, rows=rows, left=1)

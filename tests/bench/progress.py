"""What the person who waits is told."""

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


class Told:
    """A line for each step with the time since the start; at a terminal also a bar for what takes long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        """Say what is done now."""
        elapsed = time.monotonic() - self._began
        self._console.print(f"[dim]{elapsed:6.1f} s[/dim]  {text}", highlight=False)

    @contextmanager
    def bar(self, what: str, *, total: int) -> Generator["Bar"]:
        """A bar for as long as the context lasts."""
        columns = (TextColumn("          {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        ) as progress:
            yield Bar(progress, what, total)

    def through(self, items: Iterable[T], what: str, *, total: int) -> Iterator[T]:
        """The items, with a bar."""
        with self.bar(what, total=total) as bar:
            for n, item in enumerate(items):
                bar.at(n)
                yield item


class Bar:
    """How far something has got."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)

    def at(self, done: int) -> None:
        """So many are done."""
        self._progress.update(self._task, completed=done)

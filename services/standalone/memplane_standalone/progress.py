"""What `memplane up` tells the person who started it."""

import contextlib
import time
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.status import Status


class Reporter(Protocol):
    """Hears how the parts are doing."""

    def starting(self, part: str) -> None:
        """A part has begun to start."""
        ...

    def ready(self, part: str, *, seconds: float) -> None:
        """A part can do its work, so long after it began to start."""
        ...

    def trouble(self, part: str, *, what: str) -> None:
        """A part ended, or does not get ready."""
        ...

    def note(self, text: str) -> None:
        """Anything else."""
        ...


class ConsoleReporter:
    """A line a part; at a terminal also a last line with what is being waited for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._waiting: list[str] = []
        self._status: Status | None = console.status("starting") if console.is_terminal else None

    def starting(self, part: str) -> None:
        """Add it to what is waited for."""
        if part not in self._waiting:
            self._waiting.append(part)
        self._show()

    def ready(self, part: str, *, seconds: float) -> None:
        """Print its line."""
        self._drop(part)
        self._print(f"[green]ready[/green]  {part:<10} {seconds:6.1f} s")

    def trouble(self, part: str, *, what: str) -> None:
        """Print what is wrong with it."""
        self._drop(part)
        self._print(f"[yellow]down[/yellow]   {part:<10} {escape(what)}")

    def note(self, text: str) -> None:
        """Print it as it is."""
        self._print(escape(text))

    def elapsed(self) -> float:
        """Seconds since this reporter was made."""
        return time.monotonic() - self._began

    def _print(self, text: str) -> None:
        # Whoever listened may be gone, terminal and all: that is no reason to stop what is running, or not to stop it.
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, soft_wrap=True)

    def _drop(self, part: str) -> None:
        if part in self._waiting:
            self._waiting.remove(part)
        self._show()

    def _show(self) -> None:
        if self._status is None:
            return
        if self._waiting:
            self._status.update(f"waiting for {', '.join(self._waiting)}")
            self._status.start()
        else:
            self._status.stop()

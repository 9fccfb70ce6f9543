"""The time between being told to end and ending: not ready any more, so that nobody new comes, and still answering."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from litestar import Litestar

from memplane_core.observability.logs import get_logger

DRAIN: Final = signal.SIGUSR1
"""What the server's first process sends to the one that answers, when the drain begins."""

_log = get_logger(__name__)


class Draining:
    """Whether this process is about to end.

    Attributes:
        begun: Once true, it stays so.
    """

    def __init__(self) -> None:
        self.begun = False

    @asynccontextmanager
    async def watched(self, _: Litestar) -> AsyncGenerator[None]:
        """Begin when the server says so, for as long as the context lasts."""
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(DRAIN, self._begin)
        except (RuntimeError, ValueError):  # in a thread of some other program, which has no server of ours
            yield
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(DRAIN)
            signal.signal(DRAIN, signal.SIG_IGN)

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            _log.info("draining")


def ignore_drain() -> None:
    """Let a signal that comes before the application is up do nothing, here and in processes begun from here."""
    signal.signal(DRAIN, signal.SIG_IGN)


def begin_drain(pids: list[int]) -> None:
    """Tell processes that serve; those that are gone need not be told."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, DRAIN)

"""When keys were last used: told to the database now and then, off the path of any request."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import structlog
from cachetools import TTLCache

from memplane_core.background import beside
from memplane_core.domain.errors import MemplaneError

_SILENT_S: Final = 60.0
"""A key is told of at most once in this time."""

_EVERY_S: Final = 5.0
_MOST: Final = 10_000
"""Uses that wait; more than that are not told."""

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

TellUses = Callable[[Mapping[str, datetime]], Awaitable[None]]
"""Stores moments by key id. Raises Unavailable."""


class KeyUses:
    """Collects uses of keys. One that is lost, by a crash or an outage, harms nobody: the next is told.

    Args:
        tell: Stores a batch.
        every_s: How often that is tried.
    """

    def __init__(self, tell: TellUses, *, every_s: float = _EVERY_S) -> None:
        self._tell = tell
        self._every_s = every_s
        self._told: TTLCache[str, bool] = TTLCache(50_000, _SILENT_S)
        self._waiting: dict[str, datetime] = {}

    def note(self, key_id: str) -> None:
        """The key has just been used. Costs no I/O."""
        if key_id not in self._told and len(self._waiting) < _MOST:
            self._told[key_id] = True
            self._waiting[key_id] = datetime.now(UTC)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Tell for as long as the context lasts, and once more when it ends."""
        try:
            async with beside(self._run(), name="tell uses of keys"):
                yield
        finally:
            await self._flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._flush()

    async def _flush(self) -> None:
        uses, self._waiting = self._waiting, {}
        if not uses:
            return
        try:
            await self._tell(uses)
        except MemplaneError as error:
            _log.warning("key uses lost", keys=len(uses), error=type(error).__name__)

"""What one search reads: a transaction of the tenant, open while there is something to read."""

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Database

_HELD_S: Final = 0.05
"""For so long a transaction stays open while something else is waited for: to open another takes a message."""


class Reading:
    """Reads of one tenant, each statement seeing what is committed by then. Errors come out where its `with` ends.

    Args:
        tenant: Whose rows.
        database: Where they are.
    """

    def __init__(self, tenant: TenantId, database: Database) -> None:
        self._tenant = tenant
        self._database = database
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._connection = None
        await self._stack.__aexit__(kind, error, at)

    async def connection(self) -> Connection:
        """To read by, until the next `give_back`. Raises Unavailable where Postgres cannot be reached."""
        if self._connection is None:
            self._connection = await self._stack.enter_async_context(self._database.tenant(self._tenant))
        return self._connection

    async def give_back(self) -> None:
        """Let others have the connection while this one does something else."""
        self._connection = None
        await self._stack.aclose()

    async def wait_for(self, task: asyncio.Task[Any]) -> None:
        """Return when the task has ended, however it did, or has taken so long that the connection was given back."""
        _, waiting = await asyncio.wait({task}, timeout=_HELD_S)
        if waiting:
            await self.give_back()

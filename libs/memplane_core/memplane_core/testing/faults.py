"""Ports and a database that fail at a chosen point."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from memplane_core.domain.index import Generation, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Database
from memplane_core.testing.index import MemoryIndex


class Died(BaseException):
    """The process is gone: nothing after this runs, not even what would tidy up."""


class Mortality:
    """Counts the moments of a process at which it could die, and lets it die at one of them.

    Args:
        dies_at: Which moment, from 1; None never.

    Attributes:
        moments: How many have passed.
    """

    def __init__(self, dies_at: int | None) -> None:
        self._dies_at = dies_at
        self.moments = 0

    def moment(self) -> None:
        """Pass one, or die. Whoever is dead stays dead."""
        self.moments += 1
        if self._dies_at is not None and self.moments >= self._dies_at:
            raise Died


class MortalDatabase(Database):
    """A database seen from a process that may die before a transaction, before its commit, or right after it."""

    def __init__(self, database: Database, mortality: Mortality) -> None:
        self._inner = database
        self._mortality = mortality

    @asynccontextmanager
    async def tenant(self, tenant: TenantId) -> AsyncGenerator[Connection]:
        """A transaction of the tenant."""
        self._mortality.moment()
        async with self._inner.tenant(tenant) as connection:
            yield connection
            self._mortality.moment()
        self._mortality.moment()


class SleepyDatabase(Database):
    """A database seen from a process that sleeps before one of its transactions, while others go on.

    Args:
        database: Where.
        meanwhile: What happens while it sleeps.
        before: Which transaction, from 1.
    """

    def __init__(self, database: Database, meanwhile: Callable[[], Awaitable[None]], *, before: int) -> None:
        self._inner = database
        self._meanwhile = meanwhile
        self._left = before

    @asynccontextmanager
    async def tenant(self, tenant: TenantId) -> AsyncGenerator[Connection]:
        """A transaction of the tenant."""
        self._left -= 1
        if self._left == 0:
            await self._meanwhile()
        async with self._inner.tenant(tenant) as connection:
            yield connection


class MortalIndex(MemoryIndex):
    """An index seen from a process that may die before a call, or after it took effect and before the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.mortality = Mortality(None)

    async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
        """Store rows whole."""
        self.mortality.moment()
        await super().upsert(tenant, generation, rows)
        self.mortality.moment()

    async def delete(self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]) -> None:
        """Remove rows."""
        self.mortality.moment()
        await super().delete(tenant, generation, keys)
        self.mortality.moment()


class Gate:
    """A point that whoever comes to it waits at until it is opened. Open from the start unless `closed`."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    def close(self) -> None:
        """The next one to come waits."""
        self._reached.clear()
        self._open.clear()

    def open(self) -> None:
        """Let them pass, from now on too."""
        self._open.set()

    async def reached(self) -> None:
        """Return when somebody waits at it."""
        async with asyncio.timeout(10):
            await self._reached.wait()

    async def pass_through(self) -> None:
        """Wait here while it is closed; only the first to come does."""
        if not self._open.is_set() and not self._reached.is_set():
            self._reached.set()
            await self._open.wait()


class GatedIndex(MemoryIndex):
    """An index whose first upsert stalls at a gate, as if the network held it up; others overtake it.

    Attributes:
        gate: Where it stalls.
        sent: Keys of every upsert that took effect, repeats included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.sent: list[IndexKey] = []

    async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
        """Store rows whole."""
        await self.gate.pass_through()
        await super().upsert(tenant, generation, rows)
        self.sent.extend(row.key for row in rows)


class GatedDatabase(Database):
    """A database seen from a process that falls asleep once, after a transaction.

    Args:
        database: The real one.
        after: Which transaction, from 1.
        sleeps: Called then; may wait.
    """

    def __init__(self, database: Database, *, after: int, sleeps: Callable[[], Awaitable[None]]) -> None:
        self._inner = database
        self._left = after
        self._sleeps = sleeps

    @asynccontextmanager
    async def tenant(self, tenant: TenantId) -> AsyncGenerator[Connection]:
        """A transaction of the tenant."""
        async with self._inner.tenant(tenant) as connection:
            yield connection
        self._left -= 1
        if self._left == 0:
            await self._sleeps()

"""What each tenant uses, day by day in UTC: added up in a process and told to Postgres every few seconds."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from typing import Final

import msgspec

from memplane_core.background import beside
from memplane_core.contracts.limits import UsageDay
from memplane_core.domain.errors import Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Database

_TODAY: Final = "(clock_timestamp() AT TIME ZONE 'UTC')::date"
_AT_ONCE: Final = 1_000


class Counts(msgspec.Struct):
    """What happened."""

    tokens: int = 0
    writes: int = 0
    searches: int = 0

    def add(self, more: "Counts") -> None:
        """Add all of `more`."""
        self.tokens += more.tokens
        self.writes += more.writes
        self.searches += more.searches


class UsageMeter:
    """Counts in memory. What was not told when the process is killed is lost; a quota must not rest on it.

    Args:
        database: Where it is told to.
        every_s: How often.
    """

    def __init__(self, database: Database, *, every_s: float = 2.0) -> None:
        self._database = database
        self._every_s = every_s
        self._counts: dict[tuple[TenantId, date], Counts] = {}

    def add(self, tenant: TenantId, *, tokens: int = 0, writes: int = 0, searches: int = 0) -> None:
        """Count something that happened just now."""
        self._put((tenant, datetime.now(UTC).date()), Counts(tokens, writes, searches))

    async def flush(self) -> None:
        """Tell Postgres now. What cannot be told is kept. Raises Unavailable."""
        counts, self._counts = self._counts, {}
        waiting = sorted(counts.items())
        for start in range(0, len(waiting), _AT_ONCE):
            part = waiting[start : start + _AT_ONCE]
            try:
                async with self._database.system() as connection:
                    await _add(connection, part)
            except BaseException:
                for key, its in waiting[start:]:
                    self._put(key, its)
                raise

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Tell Postgres every few seconds, and once more at the end."""
        try:
            async with beside(self._run(), name="tell usage"):
                yield
        finally:
            with suppress(Unavailable):
                await self.flush()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            with suppress(Unavailable):
                await self.flush()

    def _put(self, key: tuple[TenantId, date], more: Counts) -> None:
        its = self._counts.get(key)
        if its is None:
            self._counts[key] = more
        else:
            its.add(more)


async def add_tokens(tenant: TenantId, connection: Connection, tokens: int) -> None:
    """Count tokens of today, by the database's clock, for good once the transaction is committed."""
    await connection.execute(
        f"SELECT add_usage(ARRAY[$1::uuid], ARRAY[{_TODAY}], ARRAY[$2::bigint], ARRAY[0::bigint], ARRAY[0::bigint])",
        tenant,
        tokens,
    )


async def tokens_today(tenant: TenantId, connection: Connection) -> int:
    """How many tokens were counted today, by the database's clock."""
    return int(
        await connection.fetchval(
            f"SELECT coalesce(sum(tokens), 0) FROM usage_day WHERE tenant_id = $1 AND day = {_TODAY}", tenant
        )
    )


async def usage_days(tenant: TenantId, connection: Connection, *, first: date, last: date) -> Sequence[UsageDay]:
    """The days from `first` to `last`, both included, on which something happened."""
    rows = await connection.fetch(
        """
        SELECT day, sum(tokens)::bigint AS tokens, sum(writes)::bigint AS writes, sum(searches)::bigint AS searches
        FROM usage_day WHERE tenant_id = $1 AND day BETWEEN $2 AND $3 GROUP BY day ORDER BY day
        """,
        tenant,
        first,
        last,
    )
    return [
        UsageDay(day=row["day"], tokens=row["tokens"], writes=row["writes"], searches=row["searches"]) for row in rows
    ]


async def _add(connection: Connection, counts: Sequence[tuple[tuple[TenantId, date], Counts]]) -> None:
    await connection.execute(
        "SELECT add_usage($1, $2, $3, $4, $5)",
        [tenant for (tenant, _), _ in counts],
        [day for (_, day), _ in counts],
        [its.tokens for _, its in counts],
        [its.writes for _, its in counts],
        [its.searches for _, its in counts],
    )

"""Finds what a lost message left behind, and throws away what is finished."""

from datetime import timedelta
from typing import Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import backlog
from memplane_core.storage.generations import tenants_to_retire
from memplane_core.storage.jobs import DueJob, jobs_due
from memplane_core.storage.session import Database

log = get_logger(__name__)

TENANTS_AT_ONCE: Final = 200
OUTBOX_AGE: Final = timedelta(hours=1)
IDEMPOTENCY_AGE: Final = timedelta(hours=24)

_CHORES_KEY: Final = "mp:chores"
_CHORES_EVERY_S: Final = 300


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to be done.

    Attributes:
        tenants: Those with outbox rows that are due, the longest waiting first.
        jobs: That could go on and that nobody works on, likewise.
        retiring: Tenants with a generation to drop.
        trimmed: Finished rows that were deleted.
    """

    tenants: list[TenantId]
    jobs: list[DueJob]
    retiring: list[TenantId]
    trimmed: int


class Sweep:
    """Looks across all tenants; asking for the work is the caller's.

    Args:
        database: Where the outbox is.
        client: Of the broker; a key in it lets one of many workers trim, now and then.
        at_once: How many of a kind one look returns at most; the rest are found by the next, once these are done.
    """

    def __init__(self, database: Database, client: Redis, *, at_once: int = TENANTS_AT_ONCE) -> None:
        self._database = database
        self._client = client
        self._at_once = at_once

    async def run(self) -> SweepReport:
        """Look once.

        Raises:
            Unavailable: Postgres is away.
        """
        async with self._database.system() as connection:
            tenants = await backlog.tenants_with_work(connection, limit=self._at_once)
            jobs = await jobs_due(connection, limit=self._at_once)
            retiring = await tenants_to_retire(connection, limit=self._at_once)
        trimmed = await self.trim() if await self._my_turn() else 0
        return SweepReport(tenants=tenants, jobs=jobs, retiring=retiring, trimmed=trimmed)

    async def trim(self) -> int:
        """Delete what was indexed an hour ago, and what was answered a day ago; returns how many rows went."""
        async with self._database.system() as connection:
            trimmed = await backlog.trim_finished(connection, outbox_age=OUTBOX_AGE, idempotency_age=IDEMPOTENCY_AGE)
        if trimmed:
            log.info("trimmed", rows=trimmed)
        return trimmed

    async def _my_turn(self) -> bool:
        try:
            return bool(await self._client.set(_CHORES_KEY, "1", nx=True, ex=_CHORES_EVERY_S))
        except RedisError:
            return False

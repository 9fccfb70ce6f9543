"""Holding an answer until the index has been told."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import memories
from memplane_core.storage.backlog import pending_of
from memplane_core.storage.session import Database

_POLL_S: Final = 0.1


class IndexWait:
    """Watches the outbox for a caller who asked to wait."""

    def __init__(self, database: Database, *, limit_s: float) -> None:
        self._database = database
        self._limit_s = limit_s

    async def until_indexed(self, tenant: TenantId, ids: Sequence[UUID]) -> dict[UUID, Memory]:
        """The memories as they are once none of them waits for the index, or when the time is up."""
        deadline = time.monotonic() + self._limit_s
        while True:
            async with self._database.tenant(tenant) as connection:
                pending = await pending_of(tenant, connection, ids)
                if pending == 0 or time.monotonic() >= deadline:
                    return await memories.read(tenant, connection, ids)
            await asyncio.sleep(_POLL_S)

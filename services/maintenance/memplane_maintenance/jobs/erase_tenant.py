"""Erases a tenant that is gone: all rows of all tables, all collections, and what caches keep.

It goes through everything until nothing more is found, the last time after everybody who still knew the tenant, by a
key that was looked up before, has forgotten it. In the end its own run is gone too; the receipt and the audit stay.
"""

import time
from collections import Counter
from typing import Final

from memplane_core.domain.ports import VectorIndex
from memplane_core.observability.logs import get_logger
from memplane_core.storage.erasures import (
    ErasureRecord,
    due_in_s,
    finish_erasure,
    give_up_tenant,
    save_erasure,
    tenant_erasure,
)
from memplane_core.storage.jobs import Advance
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.tenant_rows import LAST, blank_tenant, delete_rows, tenant_tables
from memplane_maintenance.jobs.erase import REMAINS
from memplane_maintenance.jobs.erase_copies import Copies, DrainGate, NoCopies
from memplane_maintenance.jobs.job import EndedItself, JobFailed, Run, StepResult

log = get_logger(__name__)

_ROWS: Final = 2_000
_STEP_S: Final = 2.0
_OWN: Final = frozenset(("lease", "job"))
"""What the run itself goes by, which goes last."""


class EraseTenant:
    """The job of kind `erase_tenant`. It takes no params.

    Args:
        database: Of the tenant.
        index: That holds its collections.
        copies: What caches keep.
        rpc_timeout_s: After this long a call to the index can no longer take effect.
        settle_s: For this long after the tenant is gone somebody may still act for it.
        again_s: Between two passes, where the one before has found something.
    """

    def __init__(
        self,
        database: Database,
        index: VectorIndex,
        *,
        copies: Copies | None = None,
        rpc_timeout_s: float = 20.0,
        settle_s: float = 45.0,
        again_s: float = 5.0,
    ) -> None:
        self._database = database
        self._index = index
        self._copies = copies or NoCopies()
        self._gate = DrainGate(database, rpc_timeout_s=rpc_timeout_s)
        self._settle_s = max(settle_s, rpc_timeout_s)
        self._again_s = again_s

    async def step(self, run: Run) -> StepResult:
        """Delete rows for about 2 s, or drop the collections."""
        async with self._database.tenant(run.tenant) as connection:
            erasure = await tenant_erasure(run.tenant, connection)
            wait_s = 0.0 if erasure is None else await due_in_s(run.tenant, connection, erasure.id)
        if erasure is None:
            raise JobFailed("the tenant is not being erased")
        if wait_s > 0:
            return _advance(run, pause_s=wait_s)
        if erasure.phase in ("", "rows"):
            await self._rows(run, erasure)
            return _advance(run)
        return await self._other_copies(run, erasure)

    async def abandon(self, run: Run, connection: Connection) -> None:
        """Say that it goes no further. The tenant stays gone; asking for its deletion again begins anew."""
        await give_up_tenant(run.tenant, connection)

    async def _rows(self, run: Run, erasure: ErasureRecord) -> None:
        ends_at = time.monotonic() + _STEP_S
        counts: Counter[str] = Counter()
        async with self._database.tenant(run.tenant) as connection:
            tables = [name for name in await tenant_tables(run.tenant, connection) if name not in _OWN]
        for table in tables:
            gone = _ROWS
            while gone == _ROWS:
                async with self._database.tenant(run.tenant) as connection:
                    await run.hold(connection)
                    gone = await delete_rows(run.tenant, connection, table, limit=_ROWS)
                    counts[table] += gone
                    over = time.monotonic() >= ends_at
                    # Counters are made by those that delete memories, and say nothing of what was found.
                    counts.pop(LAST[0], None)
                    await save_erasure(run.tenant, connection, erasure, phase="rows", counts=+counts)
                if over:
                    return
        async with self._database.tenant(run.tenant) as connection:
            await run.hold(connection)
            await save_erasure(run.tenant, connection, erasure, phase="copies", counts=+counts)

    async def _other_copies(self, run: Run, erasure: ErasureRecord) -> StepResult:
        tenant = run.tenant
        counts: Counter[str] = Counter()
        async with self._gate.closed(tenant):
            for name in await self._index.collections():
                if name.tenant == tenant:
                    await self._index.drop(tenant, name)
                    counts["collections"] += 1
        counts.update(await self._copies.drop_tenant(tenant))
        async with self._database.tenant(tenant) as connection:
            await run.hold(connection)
            if erasure.pass_ == 1 or sum(erasure.counts.values()) > _before(run) or counts["collections"]:
                found = sum((Counter(erasure.counts) + counts).values())
                await save_erasure(
                    tenant,
                    connection,
                    erasure,
                    phase="rows",
                    pass_=erasure.pass_ + 1,
                    counts=+counts,
                    wait_s=self._again_s if erasure.pass_ > 1 else self._settle_s,
                )
                return _advance(run, found=found)
            await save_erasure(tenant, connection, erasure, phase="copies", counts=+counts)
            await finish_erasure(tenant, connection, erasure, remains=REMAINS)
            await blank_tenant(tenant, connection)
            for table in LAST:
                while await delete_rows(tenant, connection, table, limit=_ROWS):
                    pass
        log.info("tenant_erased", tenant=str(tenant), erasure=str(erasure.id))
        return EndedItself()


def _before(run: Run) -> int:
    """How much had been found when the pass began."""
    return int(run.record.checkpoint.get("found", 0))


def _advance(run: Run, *, found: int | None = None, pause_s: float = 0.0) -> Advance:
    record = run.record
    checkpoint = dict(record.checkpoint) if found is None else {"found": found}
    return Advance(checkpoint=checkpoint, done=record.done, total=None, result=record.result, pause_s=pause_s)

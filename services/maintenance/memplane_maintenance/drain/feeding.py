"""Feeds one collection: sends what it has to hold, and removes what it has to lose."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn
from uuid import UUID

import msgspec

from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import Generation, IndexRow
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import outbox, reconcile, removals
from memplane_core.storage.generations import mark_ready
from memplane_core.storage.outbox import DueUpsert, Refusal, Revision
from memplane_core.storage.session import Database
from memplane_maintenance import metrics
from memplane_maintenance.drain.embedding import TextEmbedding
from memplane_maintenance.drain.tenure import Tenure
from memplane_maintenance.drain.terms import DrainLimits, DrainReport, Obstructed, packed, smaller

log = get_logger(__name__)

_DELETE_KEYS = 1_000
_QUEUED_AT_ONCE = 5_000


class CollectionFeed:
    """One slice's work on one generation of one tenant."""

    def __init__(
        self,
        tenant: TenantId,
        generation: Generation,
        *,
        database: Database,
        index: VectorIndex,
        embedding: TextEmbedding,
        tenure: Tenure,
        limits: DrainLimits,
        report: DrainReport,
    ) -> None:
        self._tenant = tenant
        self._generation = generation
        self._database = database
        self._index = index
        self._embedding = embedding
        self._tenure = tenure
        self._limits = limits
        self._report = report
        self._ensured = False

    async def turn(self) -> bool:
        """Do one round of what is due; False where there was nothing to do.

        Raises:
            Obstructed: The index is away, or the lease is lost.
            Unavailable: Postgres is away.
        """
        await self._tenure.hold()
        removed = await self._remove_some()
        sent = await self._upsert_some()
        return removed or sent

    async def _remove_some(self) -> bool:
        number = self._generation.number
        async with self._database.tenant(self._tenant) as connection:
            due = await removals.due_deletes(self._tenant, connection, generation=number, limit=self._index.batch_rows)
        for group in packed(due, lambda row: row.chunks, most=_DELETE_KEYS, count=len(due)):
            await self._tenure.hold()
            keys = [key for row in group for key in row.index_keys()]
            if keys:
                metrics.DRAIN_BATCHES.labels("delete").inc()
                try:
                    async with asyncio.timeout(self._limits.rpc_timeout_s):
                        await self._index.delete(self._tenant, self._generation, keys)
                except (IndexUnavailable, TimeoutError) as error:
                    raise self._unavailable(error, pause_s=self._limits.pause_s) from error
            async with self._database.tenant(self._tenant) as connection:
                await removals.advance_deletes(
                    self._tenant, connection, group, generation=number, again_s=2 * self._limits.rpc_timeout_s
                )
            self._report.removed += len(group)
        return bool(due)

    async def _upsert_some(self) -> bool:
        number = self._generation.number
        async with self._database.tenant(self._tenant) as connection:
            due = await outbox.due_upserts(
                self._tenant,
                connection,
                generation=number,
                limit=max(self._index.batch_rows, self._limits.embed_texts),
                embedded_only=self._embedding.helpless,
            )
            stale = [row.revision for row in due if not row.current]
            if stale:
                await outbox.supersede(self._tenant, connection, stale, generation=number)
                self._report.overtaken += len(stale)
        ready = [row for row in due if row.ready]
        if ready:
            await self._make_sure_of_collection(ready)
        size = smaller(self._index.batch_rows, ready)
        for group in packed(ready, lambda row: row.chunks, most=size, count=size):
            await self._send([row.revision for row in group])
            if self._tenure.over:
                return True
        missing = [row for row in due if row.current and not row.ready]
        embedded = await self._embedding.embed(missing, self._tenure)
        return embedded or len(missing) < len(due)

    async def _make_sure_of_collection(self, due: Sequence[DueUpsert]) -> None:
        """Make it where it has not been made, and look again where the last try failed: it may not be loaded."""
        if self._ensured or (self._generation.state == "ready" and not any(row.attempts for row in due)):
            return
        try:
            if not await self._was_made():
                await self._queue_all()
            await self._index.ensure(self._tenant, self._generation)
        except (IndexUnavailable, TimeoutError) as error:
            await self._back_off([row.revision for row in due], error)
        async with self._database.tenant(self._tenant) as connection:
            await mark_ready(self._tenant, connection, self._generation)
        self._generation = msgspec.structs.replace(self._generation, state="ready")
        self._ensured = True
        await self._tenure.hold()

    async def _was_made(self) -> bool:
        """Whether there is a collection, with what was sent to it before; False where the server has lost it."""
        if self._generation.state == "absent":
            return False
        name = self._generation.collection
        if name in {there.collection for there in await self._index.collections()}:
            return True
        log.warning("collection_lost", tenant=str(self._tenant), collection=name)
        return False

    async def _queue_all(self) -> None:
        """Queue all that belongs into a collection before it is made.

        Searches ask Postgres until the collection is there, and from then on for all that is queued: so none takes an
        empty collection for the whole of it. This may take longer than a slice; begun anew each time it would not end.
        """
        after: UUID | None = None
        while True:
            await self._tenure.hold()
            async with self._database.tenant(self._tenant) as connection:
                page = await reconcile.queue_all_page(
                    self._tenant,
                    connection,
                    generation=self._generation.number,
                    after=after,
                    limit=_QUEUED_AT_ONCE,
                )
            if page.seen < _QUEUED_AT_ONCE:
                return
            after = page.last

    async def _send(self, revisions: Sequence[Revision]) -> None:
        """Send these revisions whole and record that the index has them."""
        await self._tenure.hold()
        number = self._generation.number
        async with self._database.tenant(self._tenant) as connection:
            rows = await outbox.index_rows(self._tenant, connection, revisions, generation=number)
        counts = Counter((row.key.memory_id, row.key.rev) for row in rows)
        sent = [Revision(memory_id, rev, chunks) for (memory_id, rev), chunks in counts.items()]
        try:
            await self._upsert(rows)
        except (IndexUnavailable, TimeoutError) as error:
            await self._back_off(sent, error)
        except ValueError as error:
            await self._isolate(sent, error)
            return
        async with self._database.tenant(self._tenant) as connection:
            done = await outbox.complete_upserts(
                self._tenant, connection, sent, generation=number, fresh_s=self._limits.fresh_s
            )
        self._report.indexed += done
        self._report.overtaken += len(sent) - done

    async def _upsert(self, rows: Sequence[IndexRow]) -> None:
        size = self._index.batch_rows
        for start in range(0, len(rows), size):
            await self._tenure.hold()
            metrics.DRAIN_BATCHES.labels("upsert").inc()
            async with asyncio.timeout(self._limits.rpc_timeout_s):
                self._tenure.check()
                await self._index.upsert(self._tenant, self._generation, rows[start : start + size])

    async def _back_off(self, revisions: Sequence[Revision], error: Exception) -> NoReturn:
        async with self._database.tenant(self._tenant) as connection:
            pause_s = await outbox.back_off(self._tenant, connection, revisions, generation=self._generation.number)
        raise self._unavailable(error, pause_s=pause_s) from error

    async def _isolate(self, revisions: Sequence[Revision], error: ValueError) -> None:
        """One memory that the index can never take must not hold up the others."""
        if len(revisions) > 1:
            for revision in revisions:
                await self._send([revision])
            return
        reason = str(error)[:200]  # names a field or a vector's shape, never a text
        log.warning("index_refused", tenant=str(self._tenant), collection=self._generation.collection, error=reason)
        refusals = [
            Refusal(
                memory_id=revision.memory_id, rev=revision.rev, error=f"the index cannot take this memory: {reason}"
            )
            for revision in revisions
        ]
        async with self._database.tenant(self._tenant) as connection:
            await outbox.refuse(self._tenant, connection, refusals, generation=self._generation.number)
        self._report.refused += len(refusals)

    def _unavailable(self, error: Exception, *, pause_s: float) -> Obstructed:
        log.warning(
            "index_unavailable",
            tenant=str(self._tenant),
            collection=self._generation.collection,
            error=type(error).__name__,
            reason=str(error)[:200],
            next_try_s=pause_s,
        )
        return Obstructed("index", pause_s=pause_s)

"""Embeds the texts that were written while the embedder was away or the batch was too large to wait for."""

import asyncio
from collections.abc import Sequence

from memplane_core.domain.chunking import Chunk, chunks_of
from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.errors import NotFound, Unavailable
from memplane_core.domain.index import Generation
from memplane_core.domain.memory import head_of
from memplane_core.domain.ports import EmbeddedText, Embedder
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import outbox, refill
from memplane_core.storage.outbox import DueUpsert, PlainText, Refusal, Revision
from memplane_core.storage.session import Database
from memplane_maintenance import metrics
from memplane_maintenance.drain.tenure import Tenure
from memplane_maintenance.drain.terms import DrainLimits, DrainReport, packed, smaller

log = get_logger(__name__)


class TextEmbedding:
    """Gives one tenant's memories their chunks in one generation.

    Args:
        shares_vectors: Another generation is of the same model: what it has need not be computed.

    Attributes:
        away: The embedder did not answer: it is not asked again in this slice.
    """

    def __init__(
        self,
        tenant: TenantId,
        generation: Generation,
        *,
        database: Database,
        embedder: Embedder,
        limits: DrainLimits,
        report: DrainReport,
        shares_vectors: bool = False,
    ) -> None:
        self._tenant = tenant
        self._generation = generation
        self._database = database
        self._embedder = embedder
        self._limits = limits
        self._report = report
        self._shares_vectors = shares_vectors
        self.away = False

    @property
    def helpless(self) -> bool:
        """Nothing can be given vectors: there is no embedder, and nobody to take them over from."""
        return self.away and not self._shares_vectors

    async def embed(self, due: Sequence[DueUpsert], tenure: Tenure) -> bool:
        """Give them vectors group by group until the slice is over or the embedder is away; what is left stays due.

        Returns:
            Whether any was looked at: where not, asking again at once is of no use.

        Raises:
            Obstructed: The lease is another's by now.
        """
        found = len(due)
        if due and self._shares_vectors:
            due = await self._take_over(due)
            await tenure.hold()
        if due and self.away:
            return len(due) < found
        await self._embed_all(due, tenure)
        return found > 0

    async def _take_over(self, due: Sequence[DueUpsert]) -> list[DueUpsert]:
        """Copy vectors from a generation of the same model; returns those that none has."""
        async with self._database.tenant(self._tenant) as connection:
            taken = await refill.take_over_vectors(
                self._tenant, connection, [row.revision for row in due], generation=self._generation.number
            )
        done = set(taken)
        return [row for row in due if row.memory_id not in done]

    async def _embed_all(self, due: Sequence[DueUpsert], tenure: Tenure) -> None:
        most, count = self._limits.embed_bytes, smaller(self._limits.embed_texts, due)
        for group in packed(due, lambda row: row.size, most=most, count=count):
            if tenure.over or self.away:
                return
            await self._embed_group([row.revision for row in group])
            await tenure.hold()

    async def _embed_group(self, group: Sequence[Revision]) -> None:
        async with self._database.tenant(self._tenant) as connection:
            plain = await outbox.texts(self._tenant, connection, group)
        if not plain:
            return
        try:
            embedded = await self._ask(plain)
        except (Unavailable, NotFound, TimeoutError) as error:
            await self._give_up(group, error)
        except Exception as error:  # noqa: BLE001 - one text that the embedder cannot take must not hold up the others
            await self._isolate(group, error)
        else:
            await self._store(plain, embedded)

    async def _ask(self, plain: Sequence[PlainText]) -> list[EmbeddedText]:
        metrics.DRAIN_BATCHES.labels("embed").inc()
        items = [EmbedItem(text.content, head_of(text.actor, text.occurred_at)) for text in plain]
        timeout_s = self._limits.embed_timeout_s
        async with asyncio.timeout(timeout_s * 1.5):
            return await self._embedder.embed_passages(
                self._tenant, items, model=self._generation.model, lane="bulk", timeout_s=timeout_s
            )

    async def _give_up(self, group: Sequence[Revision], error: Exception) -> None:
        self.away = True
        self._report.obstacle = "embedding"
        async with self._database.tenant(self._tenant) as connection:
            pause_s = await outbox.back_off(self._tenant, connection, group, generation=self._generation.number)
        log.warning(
            "embedding_unavailable",
            tenant=str(self._tenant),
            texts=len(group),
            error=type(error).__name__,
            next_try_s=pause_s,
        )

    async def _isolate(self, group: Sequence[Revision], error: Exception) -> None:
        if len(group) > 1:
            for revision in group:
                await self._embed_group([revision])
                if self.away:
                    return
            return
        log.warning("embedding_refused", tenant=str(self._tenant), error=type(error).__name__)
        refusal = Refusal(
            memory_id=group[0].memory_id,
            rev=group[0].rev,
            error=f"the embedder cannot take this text ({type(error).__name__})",
        )
        await self._write({}, [refusal])

    async def _store(self, plain: Sequence[PlainText], embedded: Sequence[EmbeddedText]) -> None:
        chunks: dict[Revision, list[Chunk]] = {}
        refusals: list[Refusal] = []
        for text, result in zip(plain, embedded, strict=True):
            error = result.error or self._fault(result)
            if error:
                refusals.append(Refusal(memory_id=text.memory_id, rev=text.rev, error=error))
            else:
                revision = Revision(text.memory_id, text.rev, len(result.windows))
                chunks[revision] = chunks_of(text.content, embedded=result)
        await self._write(chunks, refusals)

    async def _write(self, chunks: dict[Revision, list[Chunk]], refusals: Sequence[Refusal]) -> None:
        number = self._generation.number
        async with self._database.tenant(self._tenant) as connection:
            if chunks:
                stored = await outbox.store_chunks(self._tenant, connection, chunks, generation=number)
                self._report.embedded += stored
            if refusals:
                await outbox.refuse(self._tenant, connection, refusals, generation=number)
                self._report.refused += len(refusals)

    def _fault(self, result: EmbeddedText) -> str | None:
        """What no retry makes right in an answer that names no error."""
        if not result.windows:
            return "the embedder found nothing to embed in this text"
        if result.vectors.shape != (len(result.windows), self._generation.dim):
            return (
                f"the embedder gave vectors of the shape {result.vectors.shape}; the index takes {self._generation.dim}"
            )
        return None

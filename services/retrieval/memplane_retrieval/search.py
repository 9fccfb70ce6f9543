"""Recall: candidates from the index and from fresh rows, checked against Postgres, ranked."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

import msgspec

from memplane_core.contracts.memories import EntityFilter, FoundMemory, ScoreParts, SearchRequest, SearchResponse
from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.errors import EmbeddingUnavailable, IndexUnavailable, NotFound, Unavailable, invalid
from memplane_core.domain.index import FloatArray, Generation, IndexFilter, IndexHit
from memplane_core.domain.memory import Memory, to_utc
from memplane_core.domain.ports import Embedder, VectorIndex
from memplane_core.domain.ranking import Ranked, Weights, rank
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import candidates, memories
from memplane_core.storage.candidates import FreshHits
from memplane_core.storage.generations import active_generation
from memplane_core.storage.session import Connection, Database
from memplane_retrieval.generations import Generations
from memplane_retrieval.pool import Pool
from memplane_retrieval.settings import SearchSettings
from memplane_retrieval.touches import Touches

MAX_CANDIDATES: Final = 16_384
"""Most that Milvus gives for one search."""

_MIN_CANDIDATES: Final = 200
_GROWTH: Final = 4
_ATTEMPTS: Final = 3
_CLOCK_MARGIN_S: Final = 60
"""By which our clock may be ahead of the database's, which alone decides what has expired."""

_log = get_logger(__name__)


class _GenerationMovedError(Exception):
    """The tenant's active generation is another one by now."""


class _Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search with everything that it needs in hand; `limit` is how many chunks the index is asked for at first."""

    tenant: TenantId
    generation: Generation
    model: ModelProfile
    vector: FloatArray
    where: EntityFilter
    top_k: int
    limit: int
    now: datetime
    weights: Weights
    explain: bool


class Searcher:
    """Answers searches. Reads nothing that it has not checked, and writes nothing but touches."""

    def __init__(
        self,
        database: Database,
        index: VectorIndex,
        embedder: Embedder,
        *,
        generations: Generations,
        touches: Touches,
        settings: SearchSettings,
    ) -> None:
        self._database = database
        self._index = index
        self._embedder = embedder
        self._generations = generations
        self._touches = touches
        self._settings = settings

    async def search(self, principal: Principal, request: SearchRequest) -> SearchResponse:
        """The best `top_k` memories for the query, or all that match where there are fewer.

        Raises:
            InvalidRequest: The weights are all 0, or the query cannot be embedded.
            EmbeddingUnavailable: The query could not be embedded in time.
            IndexUnavailable: The index is away, and there is too much for Postgres to stand in.
        """
        now = datetime.now(UTC) if request.now is None else to_utc(request.now, pointer="/now")
        weights = request.weights or Weights()
        if weights.total == 0:
            raise invalid("/weights", "at least one weight must be above 0")
        for _ in range(_ATTEMPTS):
            generation = await self._generations.active(principal.tenant)
            query = await self._query(principal.tenant, request, generation=generation, now=now, weights=weights)
            try:
                answer = await self._answer(query)
            except _GenerationMovedError:
                self._generations.forget(principal.tenant)
                continue
            if request.touch:
                floor = self._settings.touch_floor
                touched = [result.id for result in answer.results if result.relevance >= floor]
                self._touches.add(principal.tenant, touched, at=time.time())
            return answer
        raise Unavailable("the index is being replaced; try again", retry_after=1)

    async def _query(
        self, tenant: TenantId, request: SearchRequest, *, generation: Generation, now: datetime, weights: Weights
    ) -> _Query:
        try:
            vector = await self._embedder.embed_query(
                tenant, request.query, model=generation.model, timeout_s=self._settings.embed_timeout_s
            )
            profile = await self._embedder.profile(generation.model)
        except NotFound as error:  # a tenant's model that is not served is no fault of the caller's
            raise EmbeddingUnavailable(f"embedding is not set up for this tenant: {error}", retry_after=30) from error
        limit = request.candidates or max(_MIN_CANDIDATES, 8 * request.top_k)
        return _Query(
            tenant=tenant,
            generation=generation,
            model=profile,
            vector=vector,
            where=request.filters,
            top_k=request.top_k,
            limit=min(max(limit, request.top_k), MAX_CANDIDATES),
            now=now,
            weights=weights,
            explain=request.explain,
        )

    async def _answer(self, query: _Query) -> SearchResponse:
        """Candidates from the index where there is one, else from Postgres alone."""
        if query.generation.state == "absent":
            return await self._without_index(query, degraded=[])
        try:
            fresh, hits = await self._fresh_and_indexed(query)
        except IndexUnavailable as error:
            _log.warning("searched without the index", reason=str(error))
            return await self._without_index(query, degraded=["index"])
        degraded = ["fresh"] if fresh.overflow else []
        limit = query.limit
        while True:
            pool = Pool()
            pool.add_indexed(hits)
            pool.add_stored(fresh.hits, origin="fresh")
            results = await self._ranked(query, pool, at_least=query.top_k)
            if results is not None:
                return SearchResponse(results=results, degraded=degraded)
            # A graph index can give fewer than match a narrow filter: only Postgres knows that there are no more.
            if len(hits) < limit and (whole := await self._scanned(query)) is not None:
                return SearchResponse(results=await self._ranked(query, whole) or [], degraded=[])
            if limit == MAX_CANDIDATES:
                return SearchResponse(results=await self._ranked(query, pool) or [], degraded=[*degraded, "top_k"])
            limit = min(limit * _GROWTH, MAX_CANDIDATES)
            hits = await self._indexed(query, limit=limit)

    async def _fresh_and_indexed(self, query: _Query) -> tuple[FreshHits, list[IndexHit]]:
        """Both at once. The index is asked after the fresh rows have been, so that nothing falls between the two."""
        indexed: asyncio.Task[list[IndexHit]] | None = None
        try:
            async with self._database.tenant(query.tenant) as connection:
                indexed = asyncio.create_task(self._indexed(query, limit=query.limit))
                fresh = await self._fresh(query, connection)
            return fresh, await indexed
        except BaseException:
            if indexed is not None:
                indexed.cancel()
                await asyncio.gather(indexed, return_exceptions=True)
            raise

    async def _fresh(self, query: _Query, connection: Connection) -> FreshHits:
        fresh = await candidates.fresh_hits(
            query.tenant,
            connection,
            generation=query.generation.number,
            vector=query.vector,
            where=query.where,
            limit=query.limit,
        )
        if fresh.generation is None:
            raise NotFound("this tenant does not exist any more")
        if fresh.generation != query.generation.number:
            raise _GenerationMovedError
        return fresh

    async def _indexed(self, query: _Query, *, limit: int) -> list[IndexHit]:
        where = query.where
        superset = IndexFilter(
            alive_at=int(time.time()) - _CLOCK_MARGIN_S,
            user_id=_one(where.user_id),
            agent_id=_one(where.agent_id),
            session_id=_one(where.session_id),
            memory_type=_one(where.memory_type),
        )
        return await self._index.search(query.tenant, query.generation, query.vector, limit=limit, where=superset)

    async def _without_index(self, query: _Query, *, degraded: list[str]) -> SearchResponse:
        """Postgres in the index's place: exact up to its cap, and beyond it the fresh rows alone."""
        whole = await self._scanned(query)
        if whole is not None:
            return SearchResponse(results=await self._ranked(query, whole) or [], degraded=degraded)
        async with self._database.tenant(query.tenant) as connection:
            fresh = await self._fresh(query, connection)
        if not fresh.hits:
            raise IndexUnavailable("the index is not ready, and there is too much to search without it", retry_after=5)
        pool = Pool()
        pool.add_stored(fresh.hits, origin="fresh")
        return SearchResponse(results=await self._ranked(query, pool) or [], degraded=["index"])

    async def _scanned(self, query: _Query) -> Pool | None:
        """Every match, scored by Postgres; None where there are too many."""
        async with self._database.tenant(query.tenant) as connection:
            active = await active_generation(query.tenant, connection)
            if active.number != query.generation.number:
                raise _GenerationMovedError
            hits = await candidates.scan(
                query.tenant,
                connection,
                generation=query.generation.number,
                vector=query.vector,
                where=query.where,
                limit=query.limit,
            )
        if hits is None:
            return None
        pool = Pool()
        pool.add_stored(hits, origin="scan")
        return pool

    async def _ranked(self, query: _Query, pool: Pool, *, at_least: int = 0) -> list[FoundMemory] | None:
        """Check the pool, rank what passes and fetch the best; None where fewer than `at_least` pass."""
        revisions = pool.revisions()
        if not revisions:
            return [] if at_least == 0 else None
        async with self._database.tenant(query.tenant) as connection:
            checked = await candidates.check(query.tenant, connection, list(revisions), where=query.where)
            moved = [memory_id for memory_id, now in checked.items() if now.rev != revisions[memory_id]]
            if moved:
                # Edited since the index or the fresh rows were read: scored anew, or this answer would miss them.
                scored = await candidates.score(
                    query.tenant, connection, moved, generation=query.generation.number, vector=query.vector
                )
                pool.add_stored(scored, origin="fresh")
            passed = pool.candidates(checked)
            if len(passed) < at_least:
                return None
            ranked = rank(passed, now=query.now, weights=query.weights, model=query.model)
            best = ranked[: query.top_k]
            found = await memories.read(query.tenant, connection, [place.candidate.memory_id for place in best])
        return [
            _result(memory, place, explain=query.explain)
            for place in best
            if (memory := found.get(place.candidate.memory_id)) is not None and memory.state == "active"
        ]


def _one(value: str | None) -> tuple[str, ...] | None:
    return None if value is None else (value,)


def _result(memory: Memory, place: Ranked, *, explain: bool) -> FoundMemory:
    parts = ScoreParts(
        cosine=place.candidate.cosine,
        dense=place.dense,
        match=place.match,
        recency=place.recency,
        importance=place.candidate.importance,
        priority=place.priority,
        origin=place.candidate.origin,
    )
    return FoundMemory(
        **{name: getattr(memory, name) for name in Memory.__struct_fields__},
        score=place.score,
        relevance=place.relevance,
        explain=parts if explain else msgspec.UNSET,
    )

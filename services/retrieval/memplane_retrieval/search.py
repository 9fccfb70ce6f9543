"""Recall: candidates from the index and from fresh rows, checked against Postgres, ranked."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from memplane_core.contracts.memories import EntityFilter, FoundMemory, ScoreParts, SearchRequest, SearchResponse
from memplane_core.domain.errors import IndexUnavailable, NotFound, Unavailable, invalid
from memplane_core.domain.index import FloatArray, Generation, IndexFilter, IndexHit
from memplane_core.domain.memory import Memory, to_utc
from memplane_core.domain.ports import Embedder, VectorIndex
from memplane_core.domain.ranking import Candidate, Ranked, Weights, rank
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage import candidates, memories
from memplane_core.storage.candidates import FreshHits
from memplane_core.storage.session import Database
from memplane_retrieval.generations import Generations
from memplane_retrieval.pool import Pool
from memplane_retrieval.settings import SearchSettings
from memplane_retrieval.touches import Touches

MAX_CANDIDATES: Final = 16_384
"""Most that Milvus gives for one search."""

_MIN_CANDIDATES: Final = 200
_GROWTH: Final = 4
_ATTEMPTS: Final = 3

_log = get_logger(__name__)


class _GenerationMovedError(Exception):
    """The tenant's active generation is another one by now."""


class _Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search with everything that it needs in hand."""

    tenant: TenantId
    generation: Generation
    vector: FloatArray
    where: EntityFilter
    top_k: int
    limit: int


class _Found(msgspec.Struct, frozen=True):
    pool: list[Candidate]
    degraded: list[str]


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
            query = await self._query(principal.tenant, request, generation=generation)
            try:
                found = await self._find(query)
            except _GenerationMovedError:
                self._generations.forget(principal.tenant)
                continue
            model = await self._embedder.profile(generation.model)
            ranked = rank(found.pool, now=now, weights=weights, model=model)
            results = await self._results(principal.tenant, ranked[: request.top_k], explain=request.explain)
            if request.touch:
                floor = self._settings.touch_floor
                self._touches.add(principal.tenant, [r.id for r in results if r.relevance >= floor], at=time.time())
            return SearchResponse(results=results, degraded=found.degraded)
        raise Unavailable("the index is being replaced; try again", retry_after=1)

    async def _query(self, tenant: TenantId, request: SearchRequest, *, generation: Generation) -> _Query:
        vector = await self._embedder.embed_query(
            tenant, request.query, model=generation.model, timeout_s=self._settings.embed_timeout_s
        )
        limit = request.candidates or max(_MIN_CANDIDATES, 8 * request.top_k)
        return _Query(
            tenant=tenant,
            generation=generation,
            vector=vector,
            where=request.filters,
            top_k=request.top_k,
            limit=min(max(limit, request.top_k), MAX_CANDIDATES),
        )

    async def _find(self, query: _Query) -> _Found:
        """Candidates from the index where there is one, else from Postgres alone."""
        if query.generation.state == "absent":
            return await self._scan(query, degraded=[])
        try:
            fresh, hits = await self._fresh_and_indexed(query)
        except IndexUnavailable as error:
            _log.warning("searched without the index", reason=str(error))
            return await self._scan(query, degraded=["index"])
        degraded = ["fresh"] if fresh.overflow else []
        limit = query.limit
        while True:
            pool = Pool()
            pool.add_indexed(hits)
            pool.add_stored(fresh.hits, origin="fresh")
            found = await self._checked(query, pool)
            if len(found) >= query.top_k or len(hits) < limit:
                return _Found(found, degraded)
            if limit == MAX_CANDIDATES:
                return _Found(found, [*degraded, "top_k"])
            limit = min(limit * _GROWTH, MAX_CANDIDATES)
            hits = await self._indexed(query, limit=limit)

    async def _fresh_and_indexed(self, query: _Query) -> tuple[FreshHits, list[IndexHit]]:
        """Both at once. The index is asked after the fresh rows have been, so that nothing falls between the two."""
        async with self._database.tenant(query.tenant) as connection:
            indexed = asyncio.create_task(self._indexed(query, limit=query.limit))
            try:
                fresh = await candidates.fresh_hits(
                    query.tenant,
                    connection,
                    generation=query.generation.number,
                    vector=query.vector,
                    where=query.where,
                )
                _same_generation(fresh, query.generation)
            except BaseException:
                indexed.cancel()
                await asyncio.gather(indexed, return_exceptions=True)
                raise
        return fresh, await indexed

    async def _indexed(self, query: _Query, *, limit: int) -> list[IndexHit]:
        where = query.where
        superset = IndexFilter(
            alive_at=int(time.time()),
            user_id=_one(where.user_id),
            agent_id=_one(where.agent_id),
            session_id=_one(where.session_id),
            memory_type=_one(where.memory_type),
        )
        return await self._index.search(query.tenant, query.generation, query.vector, limit=limit, where=superset)

    async def _scan(self, query: _Query, *, degraded: list[str]) -> _Found:
        """Postgres in the index's place: exact up to its cap, and beyond it the fresh rows alone."""
        async with self._database.tenant(query.tenant) as connection:
            fresh = await candidates.fresh_hits(
                query.tenant, connection, generation=query.generation.number, vector=query.vector, where=query.where
            )
            _same_generation(fresh, query.generation)
            scanned = await candidates.scan(
                query.tenant,
                connection,
                generation=query.generation.number,
                vector=query.vector,
                where=query.where,
                limit=query.limit,
            )
        pool = Pool()
        if scanned is not None:
            pool.add_stored(scanned, origin="scan")
            return _Found(await self._checked(query, pool), degraded)
        if not fresh.hits:
            raise IndexUnavailable("the index is not ready, and there is too much to search without it", retry_after=5)
        pool.add_stored(fresh.hits, origin="fresh")
        return _Found(await self._checked(query, pool), ["index"])

    async def _checked(self, query: _Query, pool: Pool) -> list[Candidate]:
        revisions = pool.revisions()
        if not revisions:
            return []
        async with self._database.tenant(query.tenant) as connection:
            found = await candidates.check(query.tenant, connection, revisions, where=query.where)
        return pool.candidates(found)

    async def _results(self, tenant: TenantId, ranked: Sequence[Ranked], *, explain: bool) -> list[FoundMemory]:
        if not ranked:
            return []
        async with self._database.tenant(tenant) as connection:
            found = await memories.read(tenant, connection, [r.candidate.memory_id for r in ranked])
        return [
            _result(memory, place, explain=explain)
            for place in ranked
            if (memory := found.get(place.candidate.memory_id)) is not None and memory.state == "active"
        ]


def _same_generation(fresh: FreshHits, generation: Generation) -> None:
    if fresh.generation is None:
        raise NotFound("this tenant does not exist any more")
    if fresh.generation != generation.number:
        raise _GenerationMovedError


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

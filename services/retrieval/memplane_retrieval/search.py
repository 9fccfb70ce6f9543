"""Recall: nominated memories, read anew from Postgres, ranked."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from memplane_core.contracts.memories import Degraded, FoundMemory, ScoreParts, SearchRequest, SearchResponse
from memplane_core.contracts.policy import Policy
from memplane_core.domain.binding import narrowed
from memplane_core.domain.embedding import ModelProfile
from memplane_core.domain.errors import EmbeddingUnavailable, ModelMismatch, NotFound, Unavailable
from memplane_core.domain.filters import Filter, index_superset, matches, parse_filter
from memplane_core.domain.index import FloatArray, Generation
from memplane_core.domain.lexical import query_words
from memplane_core.domain.memory import Memory, to_utc
from memplane_core.domain.ports import Embedder
from memplane_core.domain.ranking import Candidate, Origin, Question, Ranked, rank
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.domain.text import terms
from memplane_core.domain.validity import ValidAt, valid_at_of
from memplane_core.observability.logs import get_logger
from memplane_core.storage import memories
from memplane_core.storage.pool import read_pool
from memplane_core.storage.session import Connection, Database
from memplane_retrieval.generations import Generations
from memplane_retrieval.metrics import DEGRADED, POOL_SIZE
from memplane_retrieval.nomination import MAX_CANDIDATES, GenerationMovedError, Nominated, Nominator
from memplane_retrieval.query import Query, Trace
from memplane_retrieval.reading import Reading
from memplane_retrieval.reranking import Placed, Reranking, behind
from memplane_retrieval.settings import SearchSettings
from memplane_retrieval.touches import Touches

_MIN_CANDIDATES: Final = 200
_ATTEMPTS: Final = 3
_AT_ONCE: Final = 1_000
"""Candidates that are ranked in between; more would keep every other request of the process waiting."""


_log = get_logger(__name__)


class Searcher:
    """Answers searches. Shows nothing that it has not checked, and writes nothing but touches."""

    def __init__(
        self,
        database: Database,
        nominator: Nominator,
        embedder: Embedder,
        *,
        reranking: Reranking,
        generations: Generations,
        touches: Touches,
        settings: SearchSettings,
    ) -> None:
        self._database = database
        self._nominator = nominator
        self._embedder = embedder
        self._reranking = reranking
        self._generations = generations
        self._touches = touches
        self._settings = settings

    async def search(
        self, principal: Principal, request: SearchRequest, *, trace: Trace | None = None
    ) -> SearchResponse:
        """The best `top_k` memories for the query, or all that match where there are fewer.

        Args:
            principal: Who asks.
            request: What for.
            trace: Takes down how the answer came about.

        Raises:
            InvalidRequest: The filter makes no sense, or no user is named and has to be.
            Forbidden: The filter asks for somebody whom the caller's key is not bound to.
            EmbeddingUnavailable: The query could not be embedded in time, and words alone cannot answer.
            IndexUnavailable: The index is away, and there is too much for Postgres to stand in.
            ModelMismatch: The tenant's model makes other vectors by now.
        """
        policy = await self._generations.policy(principal.tenant)
        where = narrowed(principal, parse_filter(request.filters), require_user=policy.require_user)
        clock = None if request.now is None else to_utc(request.now, pointer="/now")
        now = clock or datetime.now(UTC)
        valid_at = valid_at_of(request.valid_at, now=clock, pointer="/valid_at")
        for _ in range(_ATTEMPTS):
            generation = await self._generations.active(principal.tenant)
            query = await self._query(
                principal.tenant,
                request,
                generation=generation,
                policy=policy,
                where=where,
                now=now,
                valid_at=valid_at,
                trace=trace,
            )
            try:
                results, degraded = await self._answer(query)
            except GenerationMovedError:
                self._generations.forget(principal.tenant)
                continue
            if request.mode != "lexical" and query.vector is None:
                degraded.insert(0, "dense")
            for without in degraded:
                DEGRADED.labels(without).inc()
            if request.touch:
                self.touch(principal.tenant, results)
            return SearchResponse(results=results, degraded=degraded)
        raise Unavailable("the index is being replaced; try again", retry_after=1)

    def touch(self, tenant: TenantId, results: Sequence[FoundMemory]) -> None:
        """Take note that these were used: those of them that are relevant enough."""
        touched = [result.id for result in results if result.relevance >= self._settings.touch_floor]
        self._touches.add(tenant, touched, at=time.time())

    async def _query(
        self,
        tenant: TenantId,
        request: SearchRequest,
        *,
        generation: Generation,
        policy: Policy,
        where: Filter,
        now: datetime,
        valid_at: ValidAt,
        trace: Trace | None,
    ) -> Query:
        words = query_words(terms(request.query)) if request.mode != "dense" else b""
        model, vector = await self._meaning(tenant, request, generation=generation, words=words)
        wanted = request.candidates or max(_MIN_CANDIDATES, 8 * request.top_k)
        return Query(
            tenant=tenant,
            generation=generation,
            vector=vector,
            question=Question(text=request.query, terms=words, model=model),
            where=where,
            superset=index_superset(where, alive_at=0),
            top_k=request.top_k,
            candidates=min(max(wanted, request.top_k), MAX_CANDIDATES),
            min_relevance=policy.min_relevance if request.min_relevance is None else request.min_relevance,
            now=now,
            valid_at=valid_at,
            weights=request.weights or policy.weights,
            preset=request.preset or (policy.preset if request.weights is None else None),
            decay_rate=policy.decay_rate,
            rerank=request.rerank,
            explain=request.explain,
            trace=trace,
        )

    async def _meaning(
        self, tenant: TenantId, request: SearchRequest, *, generation: Generation, words: bytes
    ) -> tuple[ModelProfile, FloatArray | None]:
        """The tenant's model and the query's vector; no vector where none is wanted, or none to be had and words do."""
        try:
            model = await self._embedder.profile(generation.model)
            if request.mode == "lexical":
                return model, None
            vector = await self._embedder.embed_query(
                tenant, request.query, model=generation.model, timeout_s=self._settings.embed_timeout_s
            )
        except (EmbeddingUnavailable, NotFound) as error:
            if not words:
                raise EmbeddingUnavailable(f"the query cannot be embedded: {error}", retry_after=5) from error
            _log.warning("searched by words alone", reason=type(error).__name__)
            return _wordy(generation), None
        if vector.shape != (generation.dim,):
            raise ModelMismatch(
                f"the model {generation.model!r} makes vectors of {vector.shape[0]} dimensions by now, and this "
                f"tenant's have {generation.dim}: run `memplane reindex --tenant {tenant}`"
            )
        return model, vector

    async def _answer(self, query: Query) -> tuple[list[FoundMemory], list[Degraded]]:
        async with Reading(query.tenant, self._database) as reading:
            nominated = await self._nominator.first(query, reading)
            while (best := await self._best(query, nominated, reading=reading)) is None:
                nominated = await self._nominator.more(query, nominated, reading=reading)
        degraded = nominated.degraded
        if query.trace is not None:
            query.trace.origins = nominated.origins
            query.trace.min_relevance = query.min_relevance
        if query.rerank and best:
            few = self._settings.rerank_candidates
            try:
                best = behind(await self._reranking.reordered(query, best[:few]), best[few:])
            except (EmbeddingUnavailable, NotFound) as error:
                _log.warning("searched without the reranker", reason=str(error))
                degraded.append("rerank")
        results = [
            _result(place, origin=nominated.origins[place.memory.id], explain=query.explain)
            for place in best[: query.top_k]
        ]
        return results, degraded

    async def _best(self, query: Query, nominated: Nominated, *, reading: Reading) -> list[Placed] | None:
        """Read the nominees, rank those that may be shown and fetch the best; None where more have to be nominated."""
        if not nominated.origins:
            return [] if nominated.whole else None
        wanted = max(query.top_k, self._settings.rerank_candidates) if query.rerank else query.top_k
        connection = await reading.connection()
        unread = [memory_id for memory_id in nominated.origins if memory_id not in nominated.read]
        rest = await read_pool(
            query.tenant,
            connection,
            unread,
            generation=query.generation.number,
            vector=query.vector,
            where=query.where,
            valid_at=query.valid_at,
        )
        pool = [*nominated.read.values(), *rest]
        if len(pool) < query.top_k and not nominated.whole:
            return None
        POOL_SIZE.observe(len(pool))
        if len(pool) <= _AT_ONCE:
            ranked = _ranked(query, pool)
        else:
            await reading.give_back()
            ranked = await asyncio.to_thread(_ranked, query, pool)
            connection = await reading.connection()
        best = await self._placed(query, connection, ranked, wanted=wanted)
        if any(_changed(place) for place in best if place.memory.id in nominated.read):
            # It was changed while the index was being asked: all are read as they are now.
            return await self._best(query, msgspec.structs.replace(nominated, read={}), reading=reading)
        return best

    async def _placed(
        self, query: Query, connection: Connection, ranked: Sequence[Ranked], *, wanted: int
    ) -> list[Placed]:
        """The best with what is shown of them; what matches no more since it was read makes room for others."""
        best = [place for place in ranked if place.relevance >= query.min_relevance]
        placed: list[Placed] = []
        while best and len(placed) < wanted:
            room = wanted - len(placed)
            some, best = best[:room], best[room:]
            ids = [place.candidate.memory_id for place in some]
            found = await memories.read(query.tenant, connection, ids, valid_at=query.valid_at)
            placed += [
                Placed(ranked=place, memory=memory, score=place.score)
                for place in some
                if (memory := found.get(place.candidate.memory_id)) is not None
                and memory.state == "active"
                and matches(query.where, memory)
            ]
        return placed


def _changed(place: Placed) -> bool:
    return place.memory.version != place.ranked.candidate.version


def _ranked(query: Query, pool: Sequence[Candidate]) -> list[Ranked]:
    ranked = rank(
        pool,
        question=query.question,
        now=query.now,
        weights=query.weights,
        preset=query.preset,
        decay_rate=query.decay_rate,
    )
    if query.trace is not None:
        query.trace.ranked = ranked
    return ranked


def _wordy(generation: Generation) -> ModelProfile:
    """Stands for a model that cannot be asked about: without vectors nothing of it is used."""
    return ModelProfile(
        name=generation.model,
        dim=generation.dim,
        max_tokens=512,
        span=1.0,
        anchor_low=0.0,
        anchor_high=1.0,
        multilingual=True,
    )


def _result(place: Placed, *, origin: Origin, explain: bool) -> FoundMemory:
    return FoundMemory(
        **{name: getattr(place.memory, name) for name in Memory.__struct_fields__},
        score=place.score,
        relevance=place.ranked.relevance,
        explain=parts_of(place.ranked, origin=origin, rerank=place.rerank) if explain else msgspec.UNSET,
    )


def parts_of(ranked: Ranked, *, origin: Origin, rerank: float | None) -> ScoreParts:
    """How a score came about, as callers are told."""
    return ScoreParts(
        cosine=ranked.candidate.cosine,
        dense=ranked.dense,
        lexical=ranked.lexical,
        actor=ranked.actor,
        dated=ranked.dated,
        session=ranked.session,
        informativeness=ranked.informativeness,
        match=ranked.match,
        recency=ranked.recency,
        importance=ranked.candidate.importance,
        priority=ranked.priority,
        rerank=rerank,
        origin=origin,
    )

"""Which memories are worth a closer look: by meaning from the index and the fresh rows, by words from Postgres."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from cachetools import TTLCache

from memplane_core.background import end
from memplane_core.contracts.memories import Degraded
from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.filters import fingerprint, seen_by_index
from memplane_core.domain.index import FloatArray
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.ranking import Candidate, Origin
from memplane_core.domain.text import TERM_BYTES
from memplane_core.observability.logs import get_logger
from memplane_core.storage import candidates, pool, words
from memplane_core.storage.candidates import SCAN_LIMIT, Fresh
from memplane_core.storage.generations import active_generation
from memplane_core.storage.session import Connection
from memplane_core.storage.words import Owner
from memplane_retrieval.answers import AnswerKey, Answers, IndexAnswer
from memplane_retrieval.metrics import NOMINATED
from memplane_retrieval.query import Query
from memplane_retrieval.reading import Reading

MAX_CANDIDATES: Final = 16_384
"""Most that Milvus gives for one search."""

SELECTIVE: Final = 1_000
"""Matching memories up to which a filter that the index does not see is answered by Postgres alone."""

_GROWTH: Final = 4
_CLOCK_MARGIN_S: Final = 60
"""By which our clock may be ahead of the database's, which alone decides what has expired."""

_TOO_MANY_S: Final = 60.0
"""For this long a filter that matched too much is taken to match too much still."""

_SCANNED_WORDS: Final = 8
"""Words of a query that are looked for in every one of many texts."""

_log = get_logger(__name__)


class GenerationMovedError(Exception):
    """The tenant's active generation is another one by now."""


class Nominated(msgspec.Struct, frozen=True, kw_only=True):
    """Memories to look at, wherever they were found.

    Attributes:
        origins: Where each was found.
        degraded: What could not be asked.
        limit: How many each arm was asked for.
        short: The deciding arm gave fewer: the index, or without a vector the words.
        whole: Nobody could nominate more.
        read: Those of them that were read while the index was being asked.
    """

    origins: dict[UUID, Origin]
    degraded: list[Degraded]
    limit: int
    short: bool
    whole: bool
    read: dict[UUID, Candidate] = {}


class Nominator:
    """Asks whoever can answer. What it nominates is checked against Postgres by its caller."""

    def __init__(self, index: VectorIndex) -> None:
        self._index = index
        self._answers = Answers()
        self._too_many: TTLCache[tuple[object, ...], bool] = TTLCache(maxsize=10_000, ttl=_TOO_MANY_S)

    async def first(self, query: Query, reading: Reading) -> Nominated:
        """Nominees for a search, of which some may have been read.

        Raises:
            GenerationMovedError: Start over with the tenant's new generation.
            IndexUnavailable: The index is away, and there is too much for Postgres to stand in.
        """
        # That few memories do not hold now, the index need not know; at another time it may be most of them.
        if not seen_by_index(query.where) or isinstance(query.valid_at, datetime):
            found = await self._among_matches(query, reading, most=SELECTIVE)
            if found is not None:
                return _scanned(found)
        if query.vector is None:
            return await self._by_words(query, reading, limit=query.candidates)
        if query.generation.state == "absent":
            return await self._without_index(query, reading, degraded=[])
        return await self._asked(query, query.vector, reading=reading, limit=query.candidates)

    async def more(self, query: Query, before: Nominated, *, reading: Reading) -> Nominated:
        """More nominees, where too few of `before` may be shown; asked until it says that it is `whole`.

        Raises as `first`.
        """
        # A graph index can give fewer than match a narrow filter: only Postgres knows that there are no more.
        if before.short:
            found = await self._among_matches(query, reading, most=SCAN_LIMIT)
            if found is not None:
                return _scanned(found)
            if query.vector is None:  # all that share a word have been named
                return msgspec.structs.replace(before, whole=True)
        if before.limit >= MAX_CANDIDATES:
            return msgspec.structs.replace(before, degraded=[*before.degraded, "top_k"], whole=True)
        limit = min(before.limit * _GROWTH, MAX_CANDIDATES)
        if query.vector is None:
            return await self._by_words(query, reading, limit=limit)
        return await self._asked(query, query.vector, reading=reading, limit=limit)

    async def _by_words(self, query: Query, reading: Reading, *, limit: int) -> Nominated:
        found = await _worded(query, await reading.connection(), limit=limit)
        return Nominated(
            origins=dict.fromkeys(found, "words"),
            degraded=[],
            limit=limit,
            short=len(found) < limit,
            whole=not query.question.terms,
        )

    async def _asked(self, query: Query, vector: FloatArray, *, reading: Reading, limit: int) -> Nominated:
        key = AnswerKey(
            tenant=query.tenant,
            generation=query.generation.number,
            vector=vector.tobytes(),
            where=query.superset,
            limit=limit,
        )
        known = self._answers.find(key)
        asking: asyncio.Task[list[UUID]] | None = None
        read: list[Candidate] = []
        connection = await reading.connection()
        try:
            if known is None:
                # Begun before the fresh rows are read, it waits for a turn of the loop: they are asked for first.
                asking = self._ask(query, vector, limit=limit)
            fresh = await self._fresh(query, connection, limit=limit, known=known)
            worded = await _worded(query, connection, limit=limit)
            if asking is not None:  # else all is read at once
                read = await pool.read_pool(
                    query.tenant,
                    connection,
                    {*worded, *fresh.ids},
                    generation=query.generation.number,
                    vector=vector,
                    where=query.where,
                    valid_at=query.valid_at,
                )
            if known is None or not fresh.settled:
                asking = asking or self._ask(query, vector, limit=limit)
                await reading.wait_for(asking)
                near = await asking
                packed = b"".join(memory_id.bytes for memory_id in near)
                known = IndexAnswer(packed=packed, short=len(near) < limit, at=fresh.at)
                self._answers.keep(key, known)
        except IndexUnavailable as error:
            _log.warning("searched without the index", reason=str(error))
            return await self._without_index(query, reading, degraded=["index"])
        except BaseException:
            if asking is not None:
                await end(asking)
            raise
        if fresh.overflow and (found := await self._among_matches(query, reading, most=SCAN_LIMIT)) is not None:
            return _scanned(found)
        for arm, count in (("index", known.count), ("fresh", len(fresh.ids)), ("words", len(worded))):
            NOMINATED.labels(arm).observe(count)
        origins: dict[UUID, Origin] = dict.fromkeys(worded, "words")
        origins |= dict.fromkeys(known.ids, "index")
        origins |= dict.fromkeys(fresh.ids, "fresh")
        return Nominated(
            origins=origins,
            degraded=["fresh"] if fresh.overflow else [],
            limit=limit,
            short=known.short,
            whole=False,
            read={candidate.memory_id: candidate for candidate in read},
        )

    def _ask(self, query: Query, vector: FloatArray, *, limit: int) -> asyncio.Task[list[UUID]]:
        where = msgspec.structs.replace(query.superset, alive_at=int(time.time()) - _CLOCK_MARGIN_S)
        return asyncio.create_task(self._index.search(query.tenant, query.generation, vector, limit=limit, where=where))

    async def _fresh(self, query: Query, connection: Connection, *, limit: int, known: IndexAnswer | None) -> Fresh:
        since = None if known is None else known.at
        fresh = await candidates.fresh(query.tenant, connection, query.asked(limit), since=since)
        if fresh.generation != query.generation.number:
            raise GenerationMovedError
        if known is not None:
            self._answers.used(good=fresh.settled)
        return fresh

    async def _without_index(self, query: Query, reading: Reading, *, degraded: list[Degraded]) -> Nominated:
        """Postgres in the index's place: exact up to its cap, and beyond it words and the fresh rows alone."""
        found = await self._among_matches(query, reading, most=SCAN_LIMIT)
        if found is not None:
            return _scanned(found, degraded=degraded)
        connection = await reading.connection()
        fresh = await self._fresh(query, connection, limit=query.candidates, known=None)
        worded = await _worded(query, connection, limit=query.candidates)
        origins: dict[UUID, Origin] = dict.fromkeys(worded, "words")
        origins |= dict.fromkeys(fresh.ids, "fresh")
        if not origins:
            raise IndexUnavailable("the index is not ready, and there is too much to search without it", retry_after=5)
        return Nominated(
            origins=origins, degraded=degraded or ["index"], limit=query.candidates, short=False, whole=True
        )

    async def _among_matches(self, query: Query, reading: Reading, *, most: int) -> list[UUID] | None:
        """The best of all that match; None where there are too many, which is remembered for a while.

        Among many, most words are looked up by their index: to look through each text takes a pass for each word.
        """
        key = (query.tenant, most, fingerprint(query.where), query.valid_at)
        if key in self._too_many:
            return None
        asked = query.asked(query.candidates)
        worded: list[UUID] = []
        connection = await reading.connection()
        active = await active_generation(query.tenant, connection)
        if active.number != query.generation.number:
            raise GenerationMovedError
        if most > SELECTIVE:
            worded = await _worded(query, connection, limit=query.candidates)
            asked = msgspec.structs.replace(asked, terms=asked.terms[: _SCANNED_WORDS * TERM_BYTES])
        found = await candidates.among_matches(query.tenant, connection, asked, most=most)
        if found is None:
            self._too_many[key] = True
            return None
        return list(dict.fromkeys(found + worded))


async def _worded(query: Query, connection: Connection, *, limit: int) -> list[UUID]:
    """By words: written with the memories, they are never behind."""
    if not query.question.terms:
        return []
    superset = query.superset
    owner = Owner(_one(superset.user_id), _one(superset.agent_id), _one(superset.session_id))
    return await words.nominate(query.tenant, connection, query.question.terms, owner=owner, limit=limit)


def _one(values: tuple[str, ...] | None) -> str | None:
    """The only value; none stands for whatever there is."""
    return values[0] or None if values is not None and len(values) == 1 else None


def _scanned(ids: list[UUID], *, degraded: Sequence[Degraded] = ()) -> Nominated:
    return Nominated(origins=dict.fromkeys(ids, "scan"), degraded=list(degraded), limit=0, short=False, whole=True)

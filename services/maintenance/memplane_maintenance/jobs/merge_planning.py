"""What changed memories would be merged with: candidates from the index, confirmed with what Postgres holds."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
import numpy as np

from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import FloatArray, Generation, IndexFilter
from memplane_core.domain.merging import Candidate, Guard, Item, by_rank, clusters, fitting, said, similarities
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import merge_reads
from memplane_core.storage.candidates import SCAN_LIMIT
from memplane_core.storage.merge_plans import Planned
from memplane_core.storage.merge_reads import OwnedVector, Scope, Seed, Text
from memplane_core.storage.session import Connection, Database

_NEAREST: Final = 24
"""Chunks that the index names for each memory."""

_AT_ONCE: Final = 8
"""Vectors of one call to the index: searches of others wait for as long as it takes."""

_LONGEST_REST_S: Final = 0.5
"""The index is left alone for as long as it was busy, and no longer than this."""

_WORTH_A_SEARCH: Final = 500
"""Vectors that are read and multiplied in the time that the index takes for one."""

_TEXTS: Final = 200
"""Texts that are held at a time."""

_STOOD_FOR: Final = 10_000
"""Most memories that one may stand for and still be compared with others."""

_MARGIN_S: Final = 60
"""By how much the clock here may be ahead of the database's."""

_SLACK: Final = 1e-3
"""How far below the threshold two chunks may be, by a quicker sum, and still be looked at closely."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at: memories that could be merged by these terms.

    Attributes:
        job_id: Whose plan counts.
        generation: Whose vectors are compared.
        threshold: See `domain.merging.clusters`.
        guard: See `domain.merging.said`.
    """

    job_id: UUID
    generation: Generation
    threshold: float
    guard: Guard


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """A memory as it is compared. Its text is not kept."""

    text: Text
    says: tuple[object, ...]


class Whole(msgspec.Struct, frozen=True):
    """All vectors of one scope: which memory each is of, and shape (chunks, dim)."""

    owners: list[UUID]
    chunks: FloatArray


class Planner:
    """Finds what belongs together.

    Args:
        database: Of the memories.
        index: Names the nearest. Where it cannot, or much is looked at, Postgres names all of at most `SCAN_LIMIT`.
    """

    def __init__(self, database: Database, index: VectorIndex) -> None:
        self._database = database
        self._index = index

    async def whole(self, tenant: TenantId, generation: Generation, *, looked_at: int) -> dict[Scope, Whole] | None:
        """All vectors of the tenant, where to look through them costs less than to ask the index so often.

        Args:
            tenant: Whose.
            generation: Of which.
            looked_at: For how many memories the index would be asked.
        """
        async with self._database.tenant(tenant) as connection:
            chunks = await merge_reads.chunks_up_to(tenant, connection, generation=generation.number, most=SCAN_LIMIT)
        if chunks > min(SCAN_LIMIT, looked_at * _WORTH_A_SEARCH):
            return None
        return await self._whole(tenant, generation)

    async def _whole(self, tenant: TenantId, generation: Generation) -> dict[Scope, Whole]:
        async with self._database.tenant(tenant) as connection:
            found = await merge_reads.all_vectors(tenant, connection, generation=generation.number)
        return await asyncio.to_thread(_by_scope, found)

    async def plan(
        self, tenant: TenantId, page: Page, seeds: Sequence[Seed], *, whole: Mapping[Scope, Whole] | None
    ) -> list[Planned]:
        """What to merge of these memories, their nearest, and all that those stand for.

        Raises:
            IndexUnavailable: The index is away, and there are too many memories to do without.
        """
        looked_for = [seed for seed in seeds if seed.vector is not None and not seed.waits and not seed.planned]
        if not looked_for:
            return []
        named = await self._nominate(tenant, page, looked_for, whole=whole)
        async with self._database.tenant(tenant) as connection:
            ids = await merge_reads.standing_for(
                tenant, connection, named | {seed.place.id for seed in looked_for}, job_id=page.job_id
            )
            vectors = await _vectors(tenant, connection, ids, page=page)
            near = await asyncio.to_thread(_near, looked_for, vectors, threshold=page.threshold)
            if len(near) < 2:
                return []
            groups = await _groups(tenant, connection, near, page=page)
            members = {member for group in groups.values() for member in group}
            vectors |= await _vectors(tenant, connection, members - vectors.keys(), page=page)
            read = await _read(tenant, connection, sorted(members), guard=page.guard)
        return await asyncio.to_thread(_clusters, groups, vectors, read, threshold=page.threshold)

    async def _nominate(
        self, tenant: TenantId, page: Page, seeds: Sequence[Seed], *, whole: Mapping[Scope, Whole] | None
    ) -> set[UUID]:
        if whole is None:
            try:
                return await self._nearest(tenant, page, seeds)
            except IndexUnavailable:
                whole = await self.whole(tenant, page.generation, looked_at=SCAN_LIMIT)
                if whole is None:
                    raise
        return await asyncio.to_thread(_alike, seeds, whole, threshold=page.threshold)

    async def _nearest(self, tenant: TenantId, page: Page, seeds: Sequence[Seed]) -> set[UUID]:
        found: set[UUID] = set()
        by_scope: defaultdict[Scope, list[FloatArray]] = defaultdict(list)
        for seed in seeds:
            if seed.vector is not None:
                by_scope[seed.scope].append(seed.vector)
        for scope, vectors in by_scope.items():
            where = IndexFilter(
                alive_at=int(time.time()) - _MARGIN_S,
                user_id=(scope.user_id or "",),
                agent_id=(scope.agent_id or "",),
                memory_type=(scope.memory_type,),
            )
            for start in range(0, len(vectors), _AT_ONCE):
                began = time.monotonic()
                some = vectors[start : start + _AT_ONCE]
                answers = await self._index.search_many(tenant, page.generation, some, limit=_NEAREST, where=where)
                found.update(memory_id for answer in answers for memory_id in answer)
                await asyncio.sleep(min(time.monotonic() - began, _LONGEST_REST_S))
        return found


def _by_scope(found: Iterable[OwnedVector]) -> dict[Scope, Whole]:
    owned: defaultdict[Scope, list[OwnedVector]] = defaultdict(list)
    for its in found:
        owned[its.scope].append(its)
    return {
        scope: Whole([its.memory_id for its in some], np.stack([its.vector for its in some]))
        for scope, some in owned.items()
    }


def _alike(seeds: Sequence[Seed], whole: Mapping[Scope, Whole], *, threshold: float) -> set[UUID]:
    """Memories with a chunk like the first one of some seed of their scope."""
    by_scope: defaultdict[Scope, list[FloatArray]] = defaultdict(list)
    for seed in seeds:
        if seed.vector is not None and seed.scope in whole:
            by_scope[seed.scope].append(seed.vector)
    found: set[UUID] = set()
    for scope, vectors in by_scope.items():
        its = whole[scope]
        best = (np.stack(vectors) @ its.chunks.T >= threshold - _SLACK).any(axis=0)
        found.update(its.owners[n] for n in np.flatnonzero(best))
    return found


async def _vectors(
    tenant: TenantId, connection: Connection, ids: Collection[UUID], *, page: Page
) -> dict[UUID, FloatArray]:
    """By memory, its vectors: shape (chunks, dim)."""
    found = await merge_reads.vectors(tenant, connection, ids, generation=page.generation.number)
    return {memory_id: np.stack(its) for memory_id, its in found.items()}


def _near(seeds: Sequence[Seed], vectors: Mapping[UUID, FloatArray], *, threshold: float) -> set[UUID]:
    """Memories of which one is a seed whose first chunk is like some chunk of the other."""
    owners = list(vectors)
    place = {owner: n for n, owner in enumerate(owners)}
    firsts = [place[seed.place.id] for seed in seeds if seed.place.id in place]
    if not firsts:
        return set()
    chunks = np.concatenate([vectors[owner] for owner in owners])
    starts = np.cumsum([0, *(len(vectors[owner]) for owner in owners[:-1])])
    cosines = chunks[starts[firsts]] @ chunks.T
    alike = np.maximum.reduceat(cosines, starts, axis=1) >= threshold - _SLACK
    alike[np.arange(len(firsts)), firsts] = False
    near = {firsts[int(row)] for row in np.flatnonzero(np.any(alike, axis=1))}
    near.update(int(column) for column in np.flatnonzero(np.any(alike, axis=0)))
    return {owners[n] for n in near}


async def _groups(
    tenant: TenantId, connection: Connection, ids: Collection[UUID], *, page: Page
) -> dict[UUID, set[UUID]]:
    """By memory, all that it stands for; those that stand for too many are left out."""
    most = 2 * _STOOD_FOR
    groups = await merge_reads.stood_for(tenant, connection, ids, job_id=page.job_id, most=most)
    if sum(map(len, groups.values())) >= most:  # cut off: one after the other tells which are too large
        for memory_id in ids:
            one = await merge_reads.stood_for(tenant, connection, [memory_id], job_id=page.job_id, most=_STOOD_FOR + 1)
            groups |= one
    return {memory_id: group for memory_id, group in groups.items() if len(group) <= _STOOD_FOR}


async def _read(tenant: TenantId, connection: Connection, ids: Sequence[UUID], *, guard: Guard) -> dict[UUID, _Read]:
    read: dict[UUID, _Read] = {}
    for start in range(0, len(ids), _TEXTS):
        for text in await merge_reads.texts(tenant, connection, ids[start : start + _TEXTS]):
            says = (text.scope, text.actor, said(text.content, guard))
            read[text.id] = _Read(text=msgspec.structs.replace(text, content=""), says=says)
    return read


def _clusters(
    groups: Mapping[UUID, set[UUID]],
    vectors: Mapping[UUID, FloatArray],
    read: Mapping[UUID, _Read],
    *,
    threshold: float,
) -> list[Planned]:
    """What all say the same of is compared; a memory of whose group anything is unknown is left as it is."""
    saying: defaultdict[tuple[object, ...], list[UUID]] = defaultdict(list)
    for memory_id in sorted(groups):
        group = groups[memory_id]
        if group <= vectors.keys() and group <= read.keys() and len({read[member].says for member in group}) == 1:
            saying[read[memory_id].says].append(memory_id)
    found: list[Planned] = []
    for ids in saying.values():
        if len(ids) > 1:
            alike = similarities([_item(memory_id, groups, vectors, read) for memory_id in ids])
            for together in clusters(alike, threshold):
                found += _settled([ids[n] for n in together], groups, read)
    return found


def _item(
    memory_id: UUID,
    groups: Mapping[UUID, set[UUID]],
    vectors: Mapping[UUID, FloatArray],
    read: Mapping[UUID, _Read],
) -> Item:
    members = sorted(groups[memory_id])
    times = [at for member in members if (at := read[member].text.occurred_at) is not None]
    return Item(
        pinned=read[memory_id].text.candidate.pinned,
        vectors=[vectors[member] for member in members],
        earliest=min(times, default=None),
        latest=max(times, default=None),
    )


def _settled(ids: Sequence[UUID], groups: Mapping[UUID, set[UUID]], read: Mapping[UUID, _Read]) -> Iterable[Planned]:
    """Who stays. What is too much for one is left to the next, as far as any two of it still fit."""
    left = by_rank(_candidate(memory_id, groups, read) for memory_id in ids)
    while len(left) > 1:
        taken = fitting(left)
        if len(taken) > 1:
            yield from (Planned(its.id, left[0].id, read[its.id].text.rev) for its in taken)
        gone = {its.id for its in taken}
        left = [its for its in left if its.id not in gone]


def _candidate(memory_id: UUID, groups: Mapping[UUID, set[UUID]], read: Mapping[UUID, _Read]) -> Candidate:
    """With the scenes of those that it will stand for by the plan; of those before it has them already."""
    its = read[memory_id].text.candidate
    scenes = dict.fromkeys(its.scene)
    for member in sorted(groups[memory_id]):
        if read[member].text.active and not its.pinned:
            scenes |= dict.fromkeys(read[member].text.candidate.scene)
    return msgspec.structs.replace(its, scene=tuple(scenes))

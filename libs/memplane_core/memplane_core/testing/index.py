"""A vector index in memory, exact, for tests of what stands on one."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np

from memplane_core.domain.collections import CollectionName, KeyPage
from memplane_core.domain.errors import IndexMismatch, IndexUnavailable
from memplane_core.domain.index import FloatArray, Generation, IndexFilter, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId


class _Change(NamedTuple):
    at: float
    key: IndexKey
    row: IndexRow | None


class _Collection:
    """All changes since it was made, oldest first."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.changes: list[_Change] = []

    def rows(self, until: float) -> dict[IndexKey, IndexRow]:
        """The rows as they were then."""
        rows: dict[IndexKey, IndexRow] = {}
        for change in self.changes:
            if change.at > until:
                break
            if change.row is None:
                rows.pop(change.key, None)
            else:
                rows[change.key] = change.row
        return rows


class MemoryIndex:
    """`domain.ports.VectorIndex` without a server.

    Args:
        clock: Seconds, never going back.

    Attributes:
        down: While true, every call raises IndexUnavailable and changes nothing.
        visible_after: Seconds after which a search sees a change, as Milvus at bounded staleness.
        batch_rows: As in the port.
        rpc_timeout_s: As in `vectors.MilvusIndex`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._collections: dict[str, _Collection] = {}
        self._released: set[str] = set()
        self.down = False
        self.visible_after = 0.0
        self.batch_rows = 500
        self.rpc_timeout_s = 20.0

    async def ensure(self, tenant: TenantId, generation: Generation) -> None:
        """Make the collection if absent. Raises IndexMismatch if it is there with another dimension."""
        self._check(tenant, generation)
        self._collections.setdefault(generation.collection, _Collection(generation.dim))
        self._released.discard(generation.collection)
        await self.check_dimension(tenant, generation)

    async def check_dimension(self, tenant: TenantId, generation: Generation) -> None:
        """Raise IndexMismatch if the collection is there with another dimension."""
        self._check(tenant, generation)
        collection = self._collections.get(generation.collection)
        if collection is not None and collection.dim != generation.dim:
            raise IndexMismatch(f"{generation.collection!r} holds vectors of dimension {collection.dim}")

    async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
        """Store rows whole."""
        collection = self._present(tenant, generation)
        if len({row.key for row in rows}) != len(rows):
            raise ValueError("two rows have the same key")
        for row in rows:
            if row.vector.shape != (generation.dim,) or not np.isfinite(row.vector).all():
                raise ValueError(f"the vector of {row.key} is not {generation.dim} finite numbers")
        now = self._clock()
        collection.changes.extend(_Change(now, row.key, row) for row in rows)

    async def delete(self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]) -> None:
        """Remove rows."""
        self._check(tenant, generation)
        now = self._clock()
        if collection := self._collections.get(generation.collection):
            collection.changes.extend(_Change(now, key, None) for key in keys)

    async def search(
        self, tenant: TenantId, generation: Generation, vector: FloatArray, *, limit: int, where: IndexFilter
    ) -> list[UUID]:
        """The memories of the nearest rows that were there `visible_after` seconds ago, exactly."""
        if not 1 <= limit <= 16_384:
            raise ValueError(f"limit {limit!r} is not within 1..16384")
        collection = self._present(tenant, generation)
        if generation.collection in self._released:
            self._released.discard(generation.collection)
            raise IndexUnavailable("the collection is not loaded yet", retry_after=1)
        rows = [row for row in collection.rows(self._clock() - self.visible_after).values() if _passes(row, where)]
        if not rows:
            return []
        matrix = np.stack([row.vector for row in rows]).astype(np.float32)
        cosines = (matrix @ vector) / (np.linalg.norm(matrix, axis=1) * np.linalg.norm(vector))
        best = [int(place) for place in np.argsort(-cosines, kind="stable")[:limit]]
        return [rows[place].key.memory_id for place in best]

    async def search_many(
        self, tenant: TenantId, generation: Generation, vectors: Sequence[FloatArray], *, limit: int, where: IndexFilter
    ) -> list[list[UUID]]:
        """What `search` gives for each vector."""
        return [await self.search(tenant, generation, vector, limit=limit, where=where) for vector in vectors]

    async def keys_present(
        self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]
    ) -> frozenset[IndexKey]:
        """Which of the keys are stored now."""
        return frozenset(self._rows(tenant, generation).keys() & set(keys))

    async def count(self, tenant: TenantId, generation: Generation) -> int:
        """Rows stored now."""
        return len(self._rows(tenant, generation))

    async def keys_after(
        self, tenant: TenantId, generation: Generation | CollectionName, after: str = "", *, limit: int
    ) -> KeyPage:
        """The keys stored now that follow `after`."""
        if limit < 1:
            raise ValueError(f"limit {limit!r} is below 1")
        texts = sorted(text for key in self._rows(tenant, generation) if (text := str(key)) > after)
        page = texts[:limit]
        return KeyPage(keys=list(map(IndexKey.parse, page)), until=page[-1] if len(texts) > limit else None)

    async def keys_of(
        self, tenant: TenantId, generation: Generation, where: IndexFilter, *, limit: int
    ) -> list[IndexKey]:
        """Keys of some rows that pass the filter now."""
        return [key for key, row in self._rows(tenant, generation).items() if _passes(row, where)][:limit]

    async def compact(self, tenant: TenantId, generation: Generation) -> bool:
        """Forget all changes but the last of each row that is there."""
        rows = self._rows(tenant, generation)
        if collection := self._collections.get(generation.collection):
            collection.changes = [change for change in collection.changes if rows.get(change.key) is change.row]
        return True

    async def drop(self, tenant: TenantId, generation: Generation | CollectionName) -> None:
        """Remove the collection."""
        self._check(tenant, generation)
        self._collections.pop(generation.collection, None)
        self._released.discard(generation.collection)

    async def release(self, tenant: TenantId, generation: Generation | CollectionName) -> None:
        """Let the next search fail, and be the last that does."""
        self._check(tenant, generation)
        self._released.add(generation.collection)

    async def collections(self) -> list[CollectionName]:
        """All collections."""
        await self.ping()
        return sorted(name for text in self._collections if (name := CollectionName.parse(text)))

    async def loaded(self) -> list[CollectionName]:
        """Those that are not released."""
        return [name for name in await self.collections() if name.collection not in self._released]

    async def ping(self) -> None:
        """Raises IndexUnavailable while `down`."""
        if self.down:
            raise IndexUnavailable("the index was switched off by the test", retry_after=1)

    async def close(self) -> None:
        """Do nothing."""

    def _rows(self, tenant: TenantId, generation: Generation | CollectionName) -> dict[IndexKey, IndexRow]:
        self._check(tenant, generation)
        collection = self._collections.get(generation.collection)
        return collection.rows(self._clock()) if collection else {}

    def _present(self, tenant: TenantId, generation: Generation) -> _Collection:
        self._check(tenant, generation)
        collection = self._collections.get(generation.collection)
        if collection is None:
            raise IndexUnavailable("the collection does not exist yet", retry_after=1)
        return collection

    def _check(self, tenant: TenantId, generation: Generation | CollectionName) -> None:
        if generation.tenant != tenant:
            raise ValueError(f"generation {generation.number} belongs to tenant {generation.tenant}, not to {tenant}")
        if self.down:
            raise IndexUnavailable("the index was switched off by the test", retry_after=1)


def _passes(row: IndexRow, where: IndexFilter) -> bool:
    wanted = (
        (where.user_id, row.user_id),
        (where.agent_id, row.agent_id),
        (where.session_id, row.session_id),
        (where.memory_type, row.memory_type),
    )
    return (
        row.expires_at > where.alive_at
        and all(values is None or value in values for values, value in wanted)
        and (where.occurred_from is None or row.occurred_at >= where.occurred_from)
        and (where.occurred_to is None or row.occurred_at <= where.occurred_to)
    )

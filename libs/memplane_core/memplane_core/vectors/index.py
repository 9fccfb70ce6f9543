"""The vector index over Milvus: Lite, and servers from 2.3.5 on."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from memplane_core.domain.collections import CollectionName, KeyPage, Uses
from memplane_core.domain.errors import IndexUnavailable
from memplane_core.domain.index import FloatArray, Generation, IndexFilter, IndexKey, IndexRow
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.vectors import schema
from memplane_core.vectors.client import Connection, MilvusClients
from memplane_core.vectors.expressions import any_key, is_narrow, key_range, superset
from memplane_core.vectors.faults import CollectionAbsent, CollectionNotLoaded
from memplane_core.vectors.lifecycle import Collections
from memplane_core.vectors.paging import stretch

T = TypeVar("T")

MAX_LIMIT: Final = 16_384
_SERVER_ROWS: Final = 500
_LITE_ROWS: Final = 50
_KEYS_PER_CALL: Final = 1_000


class MilvusIndex:
    """`domain.ports.VectorIndex` over one Milvus.

    A search is one call to the server, and so is an upsert of up to `batch_rows` rows. The first call in an event loop
    adds three for connecting; the first into a collection adds one for its schema, and a first upsert two.

    Besides what the port says, ValueError is raised for arguments that no retry makes right: a generation of another
    tenant, a vector of the wrong shape or with NaN, a string that does not fit, a limit out of range.

    Args:
        settings: Where Milvus is, and how long it may take.

    Attributes:
        uses: Which collections were searched and written, for whoever releases those that are idle.
    """

    def __init__(self, settings: MilvusSettings) -> None:
        self._settings = settings
        self._clients = MilvusClients(settings)
        self._collections = Collections(settings, self._clients)
        self.uses = Uses()

    @property
    def batch_rows(self) -> int:
        """50 on Lite, whose only worker would be held up by more, and until the server is known; 500 on a server."""
        return _SERVER_ROWS if self._clients.lite is False else _LITE_ROWS

    @property
    def rpc_timeout_s(self) -> float:
        """Seconds from the start of an `upsert` or `delete` after which it can no longer take effect.

        Twice the timeout of a call: what was sent last within the first is given up by the server within the second.
        """
        return 2 * self._settings.timeout_s

    async def ensure(self, tenant: TenantId, generation: Generation) -> None:
        """Make the collection and its index if absent, and load it. See the port.

        Raises:
            IndexMismatch: The collection is there for vectors of another length.
            IndexUnavailable: Milvus is away, or was not done within `load_timeout_s`.
        """
        _own(tenant, generation)
        await self._collections.ensure(generation)

    async def check_dimension(self, tenant: TenantId, generation: Generation) -> None:
        """Ask the server whether the collection, if there is one, holds vectors of the generation's length.

        Raises:
            IndexMismatch: It does not.
            IndexUnavailable: Milvus is away.
        """
        _own(tenant, generation)
        with contextlib.suppress(CollectionAbsent):
            await self._collections.check(generation, anew=True)

    async def upsert(self, tenant: TenantId, generation: Generation, rows: Sequence[IndexRow]) -> None:
        """Store rows whole, in calls of `batch_rows`; an equal key is replaced. Keys must be distinct.

        All rows are checked before any is sent.

        Raises:
            CollectionAbsent: `ensure` has to come first.
            IndexMismatch: As `ensure`.
            IndexUnavailable: Milvus is away; rows may have been stored, and storing them again does no harm.
        """
        _own(tenant, generation)
        if len({row.key for row in rows}) != len(rows):
            raise ValueError("two rows have the same key")
        records = [schema.record(row, generation.dim) for row in rows]
        self.uses.note(generation.collection)
        await self._collections.check(generation)  # connects, so that `batch_rows` is known for sure
        for batch in _batches(records, self.batch_rows):
            await self._when_loaded(generation, lambda it, batch=batch: it.upsert(generation.collection, batch))

    async def delete(self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]) -> None:
        """Remove rows; an absent key is no error, and an absent collection neither.

        Raises:
            IndexUnavailable: Milvus is away; rows may have been removed.
        """
        _own(tenant, generation)
        try:
            for batch in _batches(keys, _KEYS_PER_CALL):
                await self._when_loaded(
                    generation, lambda it, batch=batch: it.delete(generation.collection, any_key(batch))
                )
        except CollectionAbsent:
            return

    async def search(
        self, tenant: TenantId, generation: Generation, vector: FloatArray, *, limit: int, where: IndexFilter
    ) -> list[UUID]:
        """The memory of each of the nearest chunks by cosine, best first, at bounded staleness: one call to the server.

        Raises:
            CollectionAbsent: `ensure` has to come first.
            IndexMismatch: As `ensure`.
            CollectionNotLoaded: It is being loaded, from now on if not before; ask Postgres meanwhile.
            IndexUnavailable: Milvus is away.
        """
        [found] = await self.search_many(tenant, generation, [vector], limit=limit, where=where)
        return found

    async def search_many(
        self, tenant: TenantId, generation: Generation, vectors: Sequence[FloatArray], *, limit: int, where: IndexFilter
    ) -> list[list[UUID]]:
        """What `search` gives for each of the vectors: one call to the server for all of them.

        Raises:
            CollectionAbsent, IndexMismatch, CollectionNotLoaded, IndexUnavailable: As `search`.
        """
        _own(tenant, generation)
        if not 1 <= limit <= MAX_LIMIT:
            raise ValueError(f"limit {limit!r} is not within 1..{MAX_LIMIT}")
        vectors = [schema.checked_vector(vector, generation.dim) for vector in vectors]
        expression = superset(where)
        if expression is None or not vectors:
            return [[] for _ in vectors]
        self.uses.note(generation.collection)
        await self._collections.check(generation)
        connection = await self._clients.connection()
        try:
            found = await connection.search(
                generation.collection,
                vectors,
                expression=expression,
                limit=limit,
                params=schema.search_params(
                    generation,
                    limit=limit,
                    filtered=is_narrow(where),
                    ef=self._settings.search_ef,
                    nprobe=self._settings.search_nprobe,
                ),
            )
        except CollectionNotLoaded:
            self._collections.load_soon(generation)
            raise
        # An eighth of the time that the class itself takes: a quarter of a millisecond a search.
        return [msgspec.convert([key[:32] for key in keys], list[UUID]) for keys in found]

    async def keys_present(
        self, tenant: TenantId, generation: Generation, keys: Sequence[IndexKey]
    ) -> frozenset[IndexKey]:
        """Which of the keys are stored, at strong consistency (0.2 to 0.4 s on a server).

        None where there is no collection. Waits for one that is not loaded.

        Raises:
            IndexUnavailable: Milvus is away, or did not load the collection within `load_timeout_s`.
        """
        _own(tenant, generation)
        found: set[IndexKey] = set()
        try:
            for batch in _batches(keys, _KEYS_PER_CALL):
                texts = await self._when_loaded(
                    generation, lambda it, batch=batch: it.keys(generation.collection, any_key(batch))
                )
                found.update(IndexKey.parse(text) for text in texts)
        except CollectionAbsent:
            return frozenset()
        return frozenset(found)

    async def count(self, tenant: TenantId, generation: Generation) -> int:
        """Rows stored, at strong consistency; 0 where the collection is absent. Waits as `keys_present` does.

        Raises:
            IndexUnavailable: As `keys_present`.
        """
        _own(tenant, generation)
        try:
            return await self._when_loaded(generation, lambda it: it.count(generation.collection))
        except CollectionAbsent:
            return 0

    async def keys_after(
        self, tenant: TenantId, generation: Generation | CollectionName, after: str = "", *, limit: int
    ) -> KeyPage:
        """The keys that follow `after`, at most `limit` (1..16,383) of them, at strong consistency.

        Each takes two queries where the server gives rows in order, a few more where it does not. A row that is there
        from the first page to the last is in exactly one of them, whatever is stored or removed meanwhile.

        Raises:
            IndexUnavailable: As `keys_present`.
        """
        _own(tenant, generation)
        if not 1 <= limit < MAX_LIMIT:
            raise ValueError(f"limit {limit!r} is not within 1..{MAX_LIMIT - 1}")

        async def ask(after: str, until: str | None, most: int) -> list[str]:
            expression = key_range(after, until)
            return await self._when_loaded(
                generation, lambda it: it.some_keys(generation.collection, expression, most=most)
            )

        try:
            texts, until = await stretch(ask, after, limit=limit)
        except CollectionAbsent:
            return KeyPage(keys=[], until=None)
        return KeyPage(keys=[IndexKey.parse(text) for text in texts], until=until)

    async def keys_of(
        self, tenant: TenantId, generation: Generation, where: IndexFilter, *, limit: int
    ) -> list[IndexKey]:
        """Keys of rows that pass the filter, at most `limit` (1..16,383) of them, in no order, at strong consistency.

        Raises:
            IndexUnavailable: As `keys_present`.
        """
        _own(tenant, generation)
        if not 1 <= limit < MAX_LIMIT:
            raise ValueError(f"limit {limit!r} is not within 1..{MAX_LIMIT - 1}")
        expression = superset(where)
        if expression is None:
            return []
        try:
            texts = await self._when_loaded(
                generation, lambda it: it.some_keys(generation.collection, expression, most=limit)
            )
        except CollectionAbsent:
            return []
        return [IndexKey.parse(text) for text in texts]

    async def compact(self, tenant: TenantId, generation: Generation) -> bool:
        """Ask the server to write down what is in its memory, and to give back the room of rows that were removed.

        It does the latter in its own time. False where it refuses.
        """
        _own(tenant, generation)
        try:
            await self._collections.compact(generation.collection)
        except IndexUnavailable:
            return False
        return True

    async def drop(self, tenant: TenantId, generation: Generation | CollectionName) -> None:
        """Remove the collection; an absent one is no error.

        Raises:
            IndexUnavailable: Milvus is away.
        """
        _own(tenant, generation)
        await self._collections.drop(generation.collection)

    async def release(self, tenant: TenantId, generation: Generation | CollectionName) -> None:
        """Take the collection out of the server's memory until its next use; an absent one is no error.

        Raises:
            IndexUnavailable: Milvus is away.
        """
        _own(tenant, generation)
        await self._collections.release(generation.collection)

    async def collections(self) -> list[CollectionName]:
        """All collections of Memplane on the server, in order, those of tenants that are gone too.

        Raises:
            IndexUnavailable: Milvus is away.
        """
        return sorted(await self._collections.names())

    async def loaded(self) -> list[CollectionName]:
        """Those of `collections` that take up the server's memory, loaded or being loaded. A call for each.

        Raises:
            IndexUnavailable: Milvus is away.
        """
        states = await self._collections.states()
        return sorted(name for name, state in states.items() if state in ("loaded", "loading"))

    async def ping(self) -> None:
        """Return when the server answers; for readiness.

        Raises:
            IndexUnavailable: It does not.
        """
        connection = await self._clients.connection()
        await connection.version()

    async def close(self) -> None:
        """Give back the running loop's connection and end its background loads."""
        await self._collections.close()
        await self._clients.close()

    async def _when_loaded(
        self, generation: Generation | CollectionName, call: Callable[[Connection], Awaitable[T]]
    ) -> T:
        """Call, and once more after a load if the collection turns out not to be loaded."""
        connection = await self._clients.connection()
        try:
            return await call(connection)
        except CollectionNotLoaded:
            await self._collections.load(generation)
            return await call(connection)


def _own(tenant: TenantId, generation: Generation | CollectionName) -> None:
    if generation.tenant != tenant:
        raise ValueError(f"generation {generation.number} belongs to tenant {generation.tenant}, not to {tenant}")


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])

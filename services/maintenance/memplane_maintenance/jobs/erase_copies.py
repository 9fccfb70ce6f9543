"""What is kept of memories outside of Postgres: in the index and in caches. Used by both kinds of erasure."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.clients.jobs import kick_key
from memplane_core.clients.vector_cache import drop_vectors
from memplane_core.contracts.jobs import ACCESS_STREAM, USES_KEY
from memplane_core.domain.collections import CollectionName
from memplane_core.domain.errors import Unavailable
from memplane_core.domain.index import Generation, IndexFilter
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import removals
from memplane_core.storage.erasures import Subject
from memplane_core.storage.generations import generation_lives
from memplane_core.storage.leases import Lease, release_lease, take_lease
from memplane_core.storage.session import Database
from memplane_maintenance.drain.terms import DRAIN_LEASE, packed

_LEASE_S: Final = 30.0
_LOOK_S: Final = 0.02
_WAIT_S: Final = 8.0
_ROWS: Final = 1_000
_KEYS: Final = 1_000
_FROM_THE_BEGINNING: Final = -(2**62)
_STREAM_PAGE: Final = 1_000


class Copies(Protocol):
    """What caches keep of a tenant's memories."""

    async def drop(self, tenant: TenantId) -> dict[str, int]:
        """Drop all that is derived from texts; returns how much there was. Raises Unavailable."""
        ...

    async def drop_tenant(self, tenant: TenantId) -> dict[str, int]:
        """Drop all that names the tenant too. Raises Unavailable."""
        ...


class NoCopies:
    """Where there are no caches."""

    async def drop(self, tenant: TenantId) -> dict[str, int]:
        """Nothing."""
        del tenant
        return {}

    async def drop_tenant(self, tenant: TenantId) -> dict[str, int]:
        """Nothing."""
        del tenant
        return {}


class ValkeyCopies:
    """What is in Valkey: vectors of texts and queries, and recalls on their way to the usage of memories.

    Args:
        cache: Holds vectors, recalls, and uses of collections.
        broker: Holds what says that a message is on its way.
    """

    def __init__(self, cache: Redis, broker: Redis) -> None:
        self._cache = cache
        self._broker = broker

    async def drop(self, tenant: TenantId) -> dict[str, int]:
        """Drop the tenant's vectors and recalls: which of them were the subject's, nobody can tell."""
        return {"cached_vectors": await drop_vectors(tenant, self._cache), "recalls": await self._recalls(tenant)}

    async def drop_tenant(self, tenant: TenantId) -> dict[str, int]:
        """And what says that its collections were used, or that a drain of it is on its way."""
        counts = await self.drop(tenant)
        try:
            used = cast("list[bytes]", await self._cache.zrange(USES_KEY, 0, -1))
            mine = [text for text in used if (name := CollectionName.parse(text.decode())) and name.tenant == tenant]
            counts["collection_uses"] = int(await self._cache.zrem(USES_KEY, *mine)) if mine else 0
            await self._broker.delete(kick_key(tenant))
        except (RedisError, OSError, TimeoutError) as error:
            raise _away() from error
        return counts

    async def _recalls(self, tenant: TenantId) -> int:
        """Recalls that were not folded yet are lost: statistics of some seconds."""
        start, dropped = "-", 0
        whose = str(tenant).encode()
        try:
            while True:
                page = cast(
                    "list[tuple[bytes, dict[bytes, bytes]]]",
                    await self._cache.xrange(ACCESS_STREAM, min=start, count=_STREAM_PAGE),
                )
                mine = [entry for entry, fields in page if fields.get(b"tenant") == whose]
                if mine:
                    dropped += int(await self._cache.xdel(ACCESS_STREAM, *mine))
                if len(page) < _STREAM_PAGE:
                    return dropped
                start = f"({page[-1][0].decode()}"
        except (RedisError, OSError, TimeoutError) as error:
            raise _away() from error


def _away() -> Unavailable:
    return Unavailable("the cache cannot be reached", retry_after=2)


class DrainGate:
    """Keeps the drain of a tenant away.

    Args:
        database: Where leases are.
        rpc_timeout_s: After this long a call to the index can no longer take effect.
    """

    def __init__(self, database: Database, *, rpc_timeout_s: float) -> None:
        self._database = database
        self._ttl_s = _LEASE_S + rpc_timeout_s

    @asynccontextmanager
    async def closed(self, tenant: TenantId) -> AsyncGenerator[None]:
        """No drain is at work while the context lasts.

        Raises:
            Unavailable: One drain followed the other for 8 s.
        """
        ends_at = time.monotonic() + _WAIT_S
        lease = await self._take(tenant)
        while lease is None:
            if time.monotonic() >= ends_at:
                raise Unavailable("the tenant's drain is busy", retry_after=1)
            await asyncio.sleep(_LOOK_S)
            lease = await self._take(tenant)
        try:
            yield
        finally:
            with contextlib.suppress(Unavailable):
                await release_lease(tenant, self._database, lease)

    async def _take(self, tenant: TenantId) -> Lease | None:
        return await take_lease(tenant, self._database, name=DRAIN_LEASE, owner=uuid.uuid4().hex, ttl_s=self._ttl_s)


class IndexErasure:
    """Removes rows of the index in every generation that has a collection. Call while the drain is kept away.

    Args:
        database: Where the outbox is.
        index: That holds the rows.
        rpc_timeout_s: After this long a call to the index can no longer take effect.
    """

    def __init__(self, database: Database, index: VectorIndex, *, rpc_timeout_s: float) -> None:
        self._database = database
        self._index = index
        self._rpc_timeout_s = rpc_timeout_s

    async def remove(self, tenant: TenantId, who: Subject) -> dict[str, int]:
        """Do what the outbox says is to be removed, then remove what is found to be the subject's in spite of it.

        Returns:
            Rows that went, by generation, as receipts call them.

        Raises:
            IndexUnavailable: The index is away.
        """
        removed: Counter[str] = Counter()
        for generation in await self._generations(tenant):
            name = f"index_rows_g{generation.number}"
            removed[name] += await self._do_removals(tenant, generation)
            removed[name] += await self._remove_found(tenant, generation, who)
        return {name: count for name, count in removed.items() if count}

    async def compact(self, tenant: TenantId) -> int:
        """Ask for the room of removed rows to be given back; returns how many collections took that."""
        return sum([await self._index.compact(tenant, generation) for generation in await self._generations(tenant)])

    async def _generations(self, tenant: TenantId) -> list[Generation]:
        """All that there may be a collection of."""
        async with self._database.tenant(tenant) as connection:
            lives = await generation_lives(tenant, connection)
        return [life.generation for life in lives if life.life != "dropped"]

    async def _do_removals(self, tenant: TenantId, generation: Generation) -> int:
        """As the drain does, in larger batches."""
        removed = 0
        while True:
            async with self._database.tenant(tenant) as connection:
                due = await removals.due_deletes(tenant, connection, generation=generation.number, limit=_ROWS)
            for group in packed(due, lambda row: row.chunks, most=_KEYS, count=_KEYS):
                keys = [key for row in group for key in row.index_keys()]
                if keys:
                    await self._index.delete(tenant, generation, keys)
                async with self._database.tenant(tenant) as connection:
                    await removals.advance_deletes(
                        tenant, connection, group, generation=generation.number, again_s=2 * self._rpc_timeout_s
                    )
                removed += sum(row.chunks for row in group if row.attempts == 0)
            if len(due) < _ROWS:
                return removed

    async def _remove_found(self, tenant: TenantId, generation: Generation, who: Subject) -> int:
        """What the index itself says is the subject's: rows that Postgres knows nothing of."""
        where = IndexFilter(
            alive_at=_FROM_THE_BEGINNING,
            user_id=None if who.user_id is None else (who.user_id,),
            agent_id=None if who.agent_id is None else (who.agent_id,),
        )
        removed = 0
        while keys := await self._index.keys_of(tenant, generation, where, limit=_ROWS):
            await self._index.delete(tenant, generation, keys)
            removed += len(keys)
        return removed

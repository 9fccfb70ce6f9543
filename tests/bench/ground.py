"""A running platform with a tenant in it, and every way to ask it."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import msgspec
from tests.bench.progress import Told
from tests.bench.texts import scenes, sentence, user

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.clients.http import ServiceHttp
from memplane_core.contracts.memories import BatchWrite, BatchWritten, MemoryWrite
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.storage import bootstrap
from memplane_core.storage.generations import active_generation
from memplane_core.storage.session import Database
from memplane_core.testing.stack import Stack, StackTenant
from memplane_retrieval.settings import RetrievalSettings

WHEN: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""`occurred_at` of all memories: the embedded text begins with it, so that it decides what the cache knows."""

_LOAD_BATCH: Final = 400
"""Few enough to be embedded before the answer, while the worker feeds those before to the index."""

_TIMEOUT_S: Final = 120.0
_PATIENCE_S: Final = 600.0


class Door:
    """One way in.

    Args:
        url: Of the gateway, or of the retrieval service.
        bearer: Gives the key or the token.
    """

    def __init__(self, url: str, bearer: Callable[[], str]) -> None:
        self._http = ServiceHttp(url, service="the service measured")
        self._bearer = bearer

    async def post(self, path: str, body: bytes) -> bytes:
        """The answer's body. Raises RuntimeError for anything but 200 and 201."""
        headers = {"Authorization": f"Bearer {self._bearer()}", "Content-Type": "application/json"}
        answer = await self._http.call(
            "POST", path, timeout_s=_TIMEOUT_S, repeatable=False, headers=headers, body=body, attempts=1
        )
        if answer.status not in {200, 201}:
            raise RuntimeError(f"{path} answers {answer.status}: {answer.body[:500]!r}")
        return answer.body

    async def close(self) -> None:
        """Give back the connections."""
        await self._http.close()


class Ground:
    """What all measurements of one store share.

    Args:
        stack: Running, with two doors.
        given: A tenant of it.
        settings: Of its retrieval services.
        database: As those services see it.
        told: Hears how far things are.
    """

    def __init__(
        self, stack: Stack, given: StackTenant, settings: RetrievalSettings, *, database: Database, told: Told
    ) -> None:
        self.stack = stack
        self.given = given
        self.settings = settings
        self.database = database
        self.told = told
        self.tenant = TenantId(UUID(given.id))
        self.principal = Principal(tenant=self.tenant, scopes=SCOPES, key_id="bench", request_id="request-of-bench")
        self.tokens = InternalTokens(*settings.trust.secrets)
        self.embedder = HttpEmbedder(settings.endpoints.embedding_url, self.tokens)
        self.gateways = [Door(gateway.url, lambda: given.key) for gateway in stack.gateways]
        self.retrieval = Door(stack.retrievals[0].url, lambda: self.tokens.sign(self.principal))

    async def close(self) -> None:
        """Give back all connections."""
        for door in (*self.gateways, self.retrieval, self.embedder):
            await door.close()

    async def generation(self) -> Generation:
        """Which collection answers, and how it is searched."""
        async with self.database.tenant(self.tenant) as connection:
            return await active_generation(self.tenant, connection)

    async def write_batch(self, memories: Sequence[MemoryWrite], *, wait: bool = False) -> BatchWritten:
        """Write through the first gateway; `wait` until all is indexed, or for 30 s."""
        body = msgspec.json.encode(BatchWrite(memories=list(memories), wait="index" if wait else None))
        return msgspec.json.decode(await self.gateways[0].post("/v1/memories/batch", body), type=BatchWritten)

    async def load(self, numbers: range) -> None:
        """Write these sentences, and return when all are written; the index may be behind."""
        starts = range(numbers.start, numbers.stop, _LOAD_BATCH)
        for start in self.told.through(starts, "writing, in batches", total=len(starts)):
            await self.write_batch(
                [
                    MemoryWrite(content=sentence(n), user_id=user(n), scene=scenes(n), occurred_at=WHEN)
                    for n in range(start, min(start + _LOAD_BATCH, numbers.stop))
                ]
            )

    async def analyzed(self) -> None:
        """Have Postgres know its tables, as it does by itself within a minute or two."""
        database = self.settings.postgres.url.get_secret_value().rpartition("/")[2]
        owner = await bootstrap.connect(self.stack.postgres.superuser_url(database))
        try:
            await owner.execute("ANALYZE")
        finally:
            await owner.close()

    async def indexed(self) -> None:
        """Return when the index has been told of everything."""
        await self._until_none("indexing", "done_at IS NULL AND failed_at IS NULL")

    async def settled(self) -> None:
        """Return when, besides, nothing is fresh any more: the index answers alone."""
        await self.indexed()
        await self._until_none("no longer fresh", "fresh_until > clock_timestamp()")

    async def _until_none(self, what: str, condition: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        at_first = left = await self._outbox(condition)
        with self.told.bar(what, total=at_first) as bar:
            while left:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{what}: {left} rows are left after {_PATIENCE_S:g} s")
                await asyncio.sleep(0.2)
                left = await self._outbox(condition)
                bar.at(at_first - left)

    async def _outbox(self, condition: str) -> int:
        async with self.database.tenant(self.tenant) as connection:
            return await connection.fetchval(
                f"SELECT count(*) FROM outbox WHERE tenant_id = $1 AND op = 'upsert' AND {condition}", self.tenant
            )


def in_environment(stack: Stack, load: Callable[[], Any]) -> Any:
    """What `load` reads from the environment that the stack's services have."""
    with patch.dict(os.environ, {**stack.env, "MEMPLANE_LOG__LEVEL": "error"}):
        return load()


@asynccontextmanager
async def ground_on(stack: Stack, *, told: Told) -> AsyncGenerator[Ground]:
    """A new tenant on a running stack."""
    settings: RetrievalSettings = in_environment(stack, RetrievalSettings.load)
    given = await asyncio.to_thread(stack.make_tenant, "bench")
    async with AsyncExitStack() as closing:
        database = await closing.enter_async_context(Database.open(settings.postgres))
        ground = Ground(stack, given, settings, database=database, told=told)
        closing.push_async_callback(ground.close)
        yield ground

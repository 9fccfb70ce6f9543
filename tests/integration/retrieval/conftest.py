"""The retrieval service in this process, over a real Postgres; the index and the embedder are in memory."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import httpx2
import pytest
from redis.asyncio import Redis

from memplane_core.domain.index import Generation
from memplane_core.domain.ports import TokenMeter
from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.settings import PostgresSettings
from memplane_core.storage.outbox import Revision, index_rows
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.index import MemoryIndex
from memplane_core.testing.kicker import RecordingKicker
from memplane_core.testing.reranker import WordReranker
from memplane_core.testing.tokens import Signed
from memplane_retrieval.app import Ports, build
from memplane_retrieval.settings import RetrievalSettings
from memplane_retrieval.touches import Touches

SECRET = "internal secret of the tests, long enough"


class Service:
    """The service's HTTP door for one tenant, and the parts behind it."""

    def __init__(self, database: Database, tenant: TenantId, settings: RetrievalSettings) -> None:
        self.database = database
        self.tenant = tenant
        self.index = MemoryIndex()
        self.embedder = HashEmbedder()
        self.reranker = WordReranker()
        self.kicker = RecordingKicker()
        self.meter: TokenMeter | None = None
        self.touches = Touches(Redis.from_url("redis://127.0.0.1:1/0"))
        self._settings = settings
        self._tokens = InternalTokens(SECRET)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """A client that acts as the tenant with every scope."""

        async def open_ports(_settings: RetrievalSettings, _stack: AsyncExitStack) -> Ports:
            return Ports(
                database=self.database,
                index=self.index,
                embedder=self.embedder,
                reranker=self.reranker,
                kicker=self.kicker,
                touches=self.touches,
                meter=self.meter,
            )

        app = build(self._settings, open_ports=open_ports)
        async with app.lifespan():
            transport = httpx2.ASGITransport(app=cast("Any", app), raise_app_exceptions=False)
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://retrieval", auth=Signed(SECRET, self._principal(self.tenant))
            ) as client:
                yield client

    @property
    def generation(self) -> Generation:
        """The tenant's only one."""
        return Generation(
            tenant=self.tenant, number=1, model="hash", dim=64, index_type="HNSW", index_params={}, state="ready"
        )

    async def tell_index(self, *, shown: bool) -> None:
        """Tell the index what Postgres holds; `shown` lets the fresh window pass, so that the index alone answers."""
        await self.index.ensure(self.tenant, self.generation)
        async with self.database.tenant(self.tenant) as connection:
            await connection.execute("UPDATE generation SET state = 'ready' WHERE tenant_id = $1", self.tenant)
            due = await connection.fetch(
                "SELECT memory_id, rev FROM outbox WHERE tenant_id = $1 AND op = 'upsert'", self.tenant
            )
            revisions = [Revision(row["memory_id"], row["rev"]) for row in due]
            rows = await index_rows(self.tenant, connection, revisions, generation=1)
            await connection.execute(
                "UPDATE outbox SET done_at = clock_timestamp(),"
                " fresh_until = clock_timestamp() + make_interval(secs => $2) WHERE tenant_id = $1",
                self.tenant,
                0.0 if shown else 10.0,
            )
        await self.index.upsert(self.tenant, self.generation, rows)

    def headers(self, tenant: TenantId, *, scopes: frozenset[Any] = SCOPES) -> dict[str, str]:
        """What a request of `tenant` carries."""
        return {"Authorization": f"Bearer {self._tokens.sign(self._principal(tenant, scopes=scopes))}"}

    @staticmethod
    def _principal(tenant: TenantId, *, scopes: frozenset[Any] = SCOPES) -> Principal:
        return Principal(tenant=tenant, scopes=scopes, key_id="testkey", request_id="request-of-test")


@pytest.fixture
def service(database: Database, tenant: TenantId, postgres_settings: PostgresSettings) -> Service:
    settings = RetrievalSettings.model_validate(
        {
            "postgres": postgres_settings,
            "redis": {"broker_url": "redis://127.0.0.1:1/0", "cache_url": "redis://127.0.0.1:1/0"},
            "milvus": {"uri": "http://127.0.0.1:1"},
            "trust": {"internal_secret": SECRET},
        }
    )
    return Service(database, tenant, settings)


@pytest.fixture
async def client(service: Service) -> AsyncGenerator[httpx2.AsyncClient]:
    async with service.running() as running:
        yield running

"""The gateway in this process over a real Postgres, and real HTTP servers where other services would be."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import uuid4

import httpx2
import msgspec
import pytest
from aiohttp import web

from memplane_core.contracts.admin import KeyCreated, TenantView
from memplane_core.contracts.embedding import PROFILES_PATH
from memplane_core.domain.embedding import ModelProfile, ModelProfiles
from memplane_core.domain.tenancy import SCOPES, Principal, Scope
from memplane_core.security.internal import InternalTokens, bearer
from memplane_core.settings import PostgresSettings
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.valkey import ValkeyServer
from memplane_gateway.app import create_app
from memplane_gateway.settings import GatewaySettings

INTERNAL_SECRET = "internal secret of the tests, long enough"
ADMIN_KEY = "admin key of the tests, which is long enough"
OPS_KEY = "ops key of the tests, which is long enough"
PEPPER = "pepper of the tests, which is long enough"
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}


class Received(msgspec.Struct, frozen=True):
    """A request as it came in at the other service."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def principal(self) -> Principal:
        """For whom it was made."""
        return InternalTokens(INTERNAL_SECRET).verify(bearer(self.headers.get("Authorization")))


Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _not_found(_: web.Request) -> web.Response:
    return web.Response(status=404)


class Server:
    """A small HTTP server on loopback that remembers what it was asked, and answers as `respond` does."""

    def __init__(self) -> None:
        self.port = reserved_port()
        self.received: list[Received] = []
        self.respond: Respond = _not_found

    @property
    def url(self) -> str:
        """Its base URL, also while it is not running."""
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve for as long as the context lasts."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            yield
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/healthz":  # asked every few seconds, whatever a test is about
            return web.Response()
        self.received.append(
            Received(request.method, request.path, list(request.query.items()), request.headers, await request.read())
        )
        return await self.respond(request)


class Gateway:
    """The gateway's HTTP door. `retrieval` and `embedding` stand where the services would; start them as needed."""

    def __init__(self, settings: PostgresSettings, valkey: ValkeyServer) -> None:
        self.valkey = valkey
        self.limits: dict[str, Any] = {"timeout_s": 10}  # rates are enforced however busy this machine is
        self.retrieval = Server()
        self.embedding = Server()
        self.embedding.respond = self._profiles
        self.profiles = ModelProfiles(default="test-model", models=[_profile("other", 8), _profile("test-model", 24)])
        self._postgres = settings
        self._client: httpx2.AsyncClient | None = None

    @property
    def client(self) -> httpx2.AsyncClient:
        """Of the running gateway."""
        assert self._client is not None
        return self._client

    def settings(self, **door: Any) -> GatewaySettings:
        """Of the gateway, with those of its own section that differ from the tests'."""
        return GatewaySettings.model_validate(
            {
                "postgres": self._postgres,
                "redis": {"cache_url": self.valkey.url},
                "limits": self.limits,
                "trust": {"internal_secret": INTERNAL_SECRET},
                "endpoints": {"embedding_url": self.embedding.url, "retrieval_url": self.retrieval.url},
                "gateway": {"key_pepper": PEPPER, "admin_key": ADMIN_KEY, "docs": False, **door},
            }
        )

    @asynccontextmanager
    async def running(self, **door: Any) -> AsyncGenerator[httpx2.AsyncClient]:
        """The gateway in this process, and a client of it that carries no key."""
        async with _serving(self.settings(**door)) as client:
            self._client = client
            yield client

    async def make_tenant(self) -> TenantView:
        """A new tenant, made through the admin route."""
        answer = await self.client.post("/admin/v1/tenants", json={"name": f"t {uuid4().hex}"}, headers=ADMIN)
        assert answer.status_code == 201, answer.text
        return msgspec.json.decode(answer.content, type=TenantView)

    async def make_key(self, tenant: TenantView, *scopes: Scope) -> KeyCreated:
        """A new key of `tenant`, with all scopes where none is given."""
        body = {"name": "test", "scopes": scopes or sorted(SCOPES)}
        answer = await self.client.post(f"/admin/v1/tenants/{tenant.id}/keys", json=body, headers=ADMIN)
        assert answer.status_code == 201, answer.text
        return msgspec.json.decode(answer.content, type=KeyCreated)

    @asynccontextmanager
    async def another(self, **door: Any) -> AsyncGenerator[httpx2.AsyncClient]:
        """A second gateway beside the first, with other settings of its own section."""
        async with _serving(self.settings(**door)) as client:
            yield client

    @asynccontextmanager
    async def without_postgres(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """A gateway whose database does not answer."""
        nowhere = PostgresSettings.model_validate({"url": f"postgresql://nobody@127.0.0.1:{reserved_port()}/nothing"})
        async with _serving(self.settings().model_copy(update={"postgres": nowhere})) as client:
            yield client

    def environment(self) -> dict[str, str]:
        """The same settings for a process."""
        return {
            "MEMPLANE_POSTGRES__URL": self._postgres.url.get_secret_value(),
            "MEMPLANE_REDIS__CACHE_URL": self.valkey.url,
            "MEMPLANE_LIMITS__TIMEOUT_S": str(self.limits["timeout_s"]),
            "MEMPLANE_TRUST__INTERNAL_SECRET": INTERNAL_SECRET,
            "MEMPLANE_ENDPOINTS__EMBEDDING_URL": self.embedding.url,
            "MEMPLANE_ENDPOINTS__RETRIEVAL_URL": self.retrieval.url,
            "MEMPLANE_GATEWAY__KEY_PEPPER": PEPPER,
            "MEMPLANE_GATEWAY__ADMIN_KEY": ADMIN_KEY,
        }

    @asynccontextmanager
    async def talking_to(self, url: str) -> AsyncGenerator[httpx2.AsyncClient]:
        """A client over the network."""
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            yield client

    @staticmethod
    def answering(status: int, body: bytes = b"", content_type: str = "application/json", **headers: str) -> Respond:
        """A server that always answers so."""

        async def respond(_: web.Request) -> web.Response:
            return web.Response(status=status, body=body, content_type=content_type, headers=headers)

        return respond

    @staticmethod
    def breaking_off(*, times: int = 1_000_000, then: Respond = _not_found) -> Respond:
        """A server that reads `times` requests and closes the connection on each instead of answering."""
        left = times

        async def respond(request: web.Request) -> web.StreamResponse:
            nonlocal left
            if left == 0:
                return await then(request)
            left -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        return respond

    async def _profiles(self, request: web.Request) -> web.Response:
        if request.path != PROFILES_PATH:
            return web.Response(status=404)
        return web.Response(body=msgspec.msgpack.encode(self.profiles), content_type="application/x-msgpack")


@asynccontextmanager
async def _serving(settings: GatewaySettings) -> AsyncGenerator[httpx2.AsyncClient]:
    app = create_app(settings)
    async with app.lifespan():
        transport = httpx2.ASGITransport(app=cast("Any", app), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client


def _profile(name: str, dim: int) -> ModelProfile:
    return ModelProfile(
        name=name, dim=dim, max_tokens=512, span=0.1, anchor_low=0.7, anchor_high=0.9, multilingual=False
    )


def bearer_of(key: KeyCreated) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.key}"}


@pytest.fixture(scope="session")
def valkey() -> Generator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def gateway(postgres_settings: PostgresSettings, valkey: ValkeyServer) -> Gateway:
    return Gateway(postgres_settings, valkey)


@pytest.fixture
async def door(gateway: Gateway) -> AsyncGenerator[Gateway]:
    """The gateway with both other services running."""
    async with gateway.embedding.running(), gateway.retrieval.running(), gateway.running():
        yield gateway


@pytest.fixture
async def site(gateway: Gateway) -> AsyncGenerator[Gateway]:
    """A gateway that trusts keys for no time at all, and believes each browser's address."""
    running = gateway.running(key_cache_s=0, ops_key=OPS_KEY, trusted_proxies=["127.0.0.0/8"])
    async with gateway.embedding.running(), gateway.retrieval.running(), running:
        yield gateway

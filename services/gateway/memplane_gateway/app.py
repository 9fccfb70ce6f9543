"""Puts the gateway together."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from litestar import Litestar
from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.clients.health import ServiceHealth, redis_check
from memplane_core.clients.retrieval import RetrievalClient
from memplane_core.domain.errors import Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.security.keys import Keyring
from memplane_core.storage.api_keys import StoredKey, find_api_key, mark_keys_used
from memplane_core.storage.limits import KeyAndTenant, limits_of_key
from memplane_core.storage.session import Database
from memplane_core.storage.usage_days import UsageMeter
from memplane_core.web.app import ServiceApp, build_app
from memplane_gateway.audit import AUDIT_ROUTES
from memplane_gateway.auth import DoorAuth, KeyDirectory
from memplane_gateway.console.app import console
from memplane_gateway.console.desk import Desk
from memplane_gateway.console.pulse import Pulse
from memplane_gateway.console.sessions import Sessions
from memplane_gateway.context import CONTEXT_ROUTES
from memplane_gateway.cors import cors_of
from memplane_gateway.deeds import Refusals
from memplane_gateway.docs import docs_routes
from memplane_gateway.entities import ENTITY_ROUTES
from memplane_gateway.erasures import ERASURE_ROUTES
from memplane_gateway.export import EXPORT_ROUTES
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.generations import GENERATION_ROUTES
from memplane_gateway.history import HISTORY_ROUTES
from memplane_gateway.imports import IMPORT_ROUTES
from memplane_gateway.job_kinds import JobKinds
from memplane_gateway.jobs import JOB_ROUTES
from memplane_gateway.key_desk import KeyDesk
from memplane_gateway.key_uses import KeyUses
from memplane_gateway.keys import KEY_ROUTES
from memplane_gateway.limit_routes import LIMIT_ROUTES
from memplane_gateway.limits import Answers, LimitDirectory, Limiter
from memplane_gateway.markers import MARKER_ROUTES
from memplane_gateway.memories import MEMORY_ROUTES
from memplane_gateway.merges import MERGE_ROUTES
from memplane_gateway.observations import OBSERVATION_ROUTES
from memplane_gateway.openapi import describe
from memplane_gateway.own_keys import OWN_KEY_ROUTES
from memplane_gateway.policy import POLICY_ROUTES
from memplane_gateway.rates import RateLimiter
from memplane_gateway.settings import GatewaySettings, IndexDefaults
from memplane_gateway.system import SYSTEM_ROUTES
from memplane_gateway.system_desk import SystemDesk
from memplane_gateway.tenants import TENANT_ROUTES
from memplane_gateway.usage import USAGE_ROUTES
from memplane_gateway.whoami import WHOAMI_ROUTES
from memplane_gateway.why import WHY_ROUTES

ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    *MEMORY_ROUTES,
    *CONTEXT_ROUTES,
    *OBSERVATION_ROUTES,
    *WHY_ROUTES,
    *MARKER_ROUTES,
    *MERGE_ROUTES,
    *HISTORY_ROUTES,
    *ENTITY_ROUTES,
    *JOB_ROUTES,
    *ERASURE_ROUTES,
    *EXPORT_ROUTES,
    *IMPORT_ROUTES,
    *OWN_KEY_ROUTES,
    *POLICY_ROUTES,
    *SYSTEM_ROUTES,
    *WHOAMI_ROUTES,
    *TENANT_ROUTES,
    *KEY_ROUTES,
    *GENERATION_ROUTES,
    *LIMIT_ROUTES,
    *USAGE_ROUTES,
    *AUDIT_ROUTES,
)
"""Every route that the OpenAPI document describes."""


class Parts:
    """What requests are served with. The database is there from start-up to shutdown."""

    def __init__(self, settings: GatewaySettings) -> None:
        tokens = InternalTokens(*settings.trust.secrets)
        self._settings = settings
        self._database: Database | None = None
        self.index_defaults = settings.milvus
        self.has_llm = settings.llm is not None
        self.keyring = Keyring(settings.gateway.peppers)
        self.directory = KeyDirectory(self.keyring, self._find_key, trust_s=settings.gateway.key_cache_s)
        self.uses = KeyUses(self._tell_uses)
        self.retrieval = RetrievalClient(settings.endpoints.retrieval_url, tokens)
        self.embedder = HttpEmbedder(settings.endpoints.embedding_url, tokens)
        self.rates = RateLimiter(
            settings.redis.cache_url.get_secret_value(),
            timeout_s=settings.limits.timeout_s,
            tls=settings.redis.tls_options(settings.redis.cache_url),
        )
        self.limit_directory = LimitDirectory(
            self._find_limits, defaults=settings.limits.effective(), trust_s=settings.gateway.key_cache_s
        )
        self.usage: UsageMeter | None = None
        services = {"retrieval": settings.endpoints.retrieval_url, "embedding": settings.endpoints.embedding_url}
        self.system_desk = SystemDesk(
            lambda: self.database,
            self.rates.client,
            {name: ServiceHealth(url, service=name) for name, url in services.items()},
        )
        self.forwarder = Forwarder(self.retrieval, timeout_s=settings.gateway.request_timeout_s)
        sessions = Sessions(self.rates.client, settings.gateway.peppers[0])
        self.console = Desk(sessions, self.rates, proxies=settings.gateway.trusted_proxies)
        self.pulse = Pulse()

    @property
    def database(self) -> Database:
        """The open database. Raises Unavailable before start-up and after shutdown."""
        if self._database is None:
            raise Unavailable("the service is starting", retry_after=1)
        return self._database

    @asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncGenerator[None]:
        """Open what has to be, and give it back."""
        async with Database.open(self._settings.postgres) as database:
            self._database = database
            try:
                self.usage = UsageMeter(database)
                async with self.uses.running(), self.usage.running(), self.pulse.running():
                    yield
            finally:
                self._database = None
                await self.rates.close()
                await self.retrieval.close()
                await self.system_desk.close()
                await self.embedder.close()

    async def check_postgres(self) -> None:
        """Return when Postgres answers. Raises Unavailable."""
        await self.database.ping()

    async def _find_key(self, key_id: str) -> StoredKey | None:
        async with self.database.system() as connection:
            return await find_api_key(connection, key_id=key_id)

    async def _find_limits(self, tenant: TenantId, key_id: str) -> KeyAndTenant:
        async with self.database.tenant(tenant) as connection:
            defaults = self.limit_directory.defaults
            return await limits_of_key(tenant, connection, key_id=key_id, defaults=defaults)

    async def _tell_uses(self, uses: Mapping[str, datetime]) -> None:
        async with self.database.system() as connection:
            await mark_keys_used(connection, uses=uses)


def _dependencies(parts: Parts) -> Mapping[str, Any]:
    def database() -> Database:
        return parts.database

    def directory() -> KeyDirectory:
        return parts.directory

    def embedder() -> HttpEmbedder:
        return parts.embedder

    def forwarder() -> Forwarder:
        return parts.forwarder

    def index_defaults() -> IndexDefaults:
        return parts.index_defaults

    def kinds() -> JobKinds:
        return JobKinds(parts.database, parts.embedder, parts.index_defaults, has_llm=parts.has_llm)

    def key_desk() -> KeyDesk:
        return KeyDesk(parts.database, parts.keyring, parts.directory)

    def keyring() -> Keyring:
        return parts.keyring

    def limit_directory() -> LimitDirectory:
        return parts.limit_directory

    def system_desk() -> SystemDesk:
        return parts.system_desk

    providers = (
        database,
        directory,
        embedder,
        forwarder,
        index_defaults,
        key_desk,
        keyring,
        kinds,
        limit_directory,
        system_desk,
    )
    return {provider.__name__: Provide(provider, sync_to_thread=False) for provider in providers}


def create_app(settings: GatewaySettings | None = None) -> ServiceApp:
    """The gateway as an ASGI application. Stops the process where a setting is missing."""
    settings = settings or GatewaySettings.load()
    parts = Parts(settings)
    dependencies = _dependencies(parts)
    ops_key = settings.gateway.ops_key
    routes = [*ROUTES]
    if settings.gateway.docs:
        routes += docs_routes(describe(routes, dependencies=list(dependencies)))
    if settings.gateway.console:
        routes.append(console(parts.console, parts.pulse))
    return build_app(
        routes,
        service="gateway",
        settings=settings,
        lifespan=[parts.lifespan],
        checks={"postgres": parts.check_postgres, "retrieval": parts.retrieval.ping},
        helpful={"cache": redis_check(parts.rates.client)},
        middleware=[
            DoorAuth(
                parts.directory,
                parts.uses,
                admin_key=settings.gateway.admin_key.get_secret_value(),
                ops_key=None if ops_key is None else ops_key.get_secret_value(),
                proxies=settings.gateway.trusted_proxies,
            ),
            Limiter(parts.limit_directory, parts.rates),
        ],
        dependencies=dependencies,
        before_send=[Answers(lambda: parts.usage), Refusals(lambda: parts.database)],
        cors=cors_of(settings.gateway.cors_origins),
        strict_json=True,
        door=True,
    )

"""Where the retrieval service is put together."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from litestar import Litestar
from litestar.di import Provide
from redis.asyncio import Redis

from memplane_core.clients.embedding import HttpEmbedder, HttpReranker
from memplane_core.clients.health import redis_check
from memplane_core.clients.jobs import CeleryKicker
from memplane_core.clients.uses import UseReports
from memplane_core.domain.ports import Embedder, Kicker, Reranker, TokenMeter, VectorIndex
from memplane_core.observability.health import Check
from memplane_core.security.internal import InternalTokens
from memplane_core.storage.session import Database
from memplane_core.storage.token_quota import TokenQuota
from memplane_core.storage.usage_days import UsageMeter
from memplane_core.vectors.index import MilvusIndex
from memplane_core.web.app import ServiceApp, build_app
from memplane_core.web.middleware import InternalAuth
from memplane_retrieval.context import ContextPacker
from memplane_retrieval.embedding import Chunker
from memplane_retrieval.export import EXPORT_ROUTES
from memplane_retrieval.generations import Generations
from memplane_retrieval.import_routes import IMPORT_ROUTES
from memplane_retrieval.importer import Importer
from memplane_retrieval.markers import Markers
from memplane_retrieval.merge_routes import MERGE_ROUTES
from memplane_retrieval.merges import Merger
from memplane_retrieval.nomination import Nominator
from memplane_retrieval.patch import Patcher
from memplane_retrieval.reranking import Reranking
from memplane_retrieval.routes import ROUTES
from memplane_retrieval.routes_context import CONTEXT_ROUTES
from memplane_retrieval.routes_markers import MARKER_ROUTES
from memplane_retrieval.routes_records import RECORD_ROUTES
from memplane_retrieval.routes_sessions import SESSION_ROUTES
from memplane_retrieval.routes_why import WHY_ROUTES
from memplane_retrieval.search import Searcher
from memplane_retrieval.settings import RetrievalSettings
from memplane_retrieval.short_term import ShortTerm
from memplane_retrieval.touches import Touches
from memplane_retrieval.waiting import IndexWait
from memplane_retrieval.why import Explainer
from memplane_retrieval.write import Writer


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The world outside of this service.

    Attributes:
        helpful: How to ask whether the parts are there that it can do without: `index`, `embedding`, `cache`.
    """

    database: Database
    index: VectorIndex
    embedder: Embedder
    reranker: Reranker
    kicker: Kicker
    touches: Touches
    meter: TokenMeter | None = None
    helpful: Mapping[str, Check] = msgspec.field(default_factory=dict[str, Check])


OpenPorts = Callable[[RetrievalSettings, AsyncExitStack], Awaitable[Ports]]
"""Opens them; what has to be closed goes on the stack."""


def create_app() -> ServiceApp:
    """The application, as the environment describes it."""
    return build(RetrievalSettings.load(), open_ports=open_real_ports)


def build(settings: RetrievalSettings, *, open_ports: OpenPorts) -> ServiceApp:
    """The application, as `settings` describe it. Its parts are made when it starts and given back when it stops."""
    tokens = InternalTokens(*settings.trust.secrets)
    parts: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            parts.update(_assemble(settings, await open_ports(settings, stack)))
            yield
        parts.clear()

    async def check_postgres() -> None:
        await parts["database"].ping()

    def helpful(part: str) -> Check:
        async def check() -> None:
            if ask := parts["helpful"].get(part):
                await ask()

        return check

    return build_app(
        [
            *ROUTES,
            *SESSION_ROUTES,
            *MARKER_ROUTES,
            *MERGE_ROUTES,
            *RECORD_ROUTES,
            *CONTEXT_ROUTES,
            *WHY_ROUTES,
            *EXPORT_ROUTES,
            *IMPORT_ROUTES,
        ],
        service="retrieval",
        settings=settings,
        lifespan=[lifespan],
        checks={"postgres": check_postgres},
        # Without these this service degrades, and must stay in the rotation.
        helpful={part: helpful(part) for part in ("index", "embedding", "cache")},
        middleware=[InternalAuth(tokens)],
        dependencies={
            name: _provide(parts, name)
            for name in (
                "database",
                "generations",
                "writer",
                "patcher",
                "markers",
                "merger",
                "importer",
                "searcher",
                "explainer",
                "short_term",
                "context_packer",
                "index_wait",
            )
        },
    )


def _provide(parts: dict[str, Any], name: str) -> Provide:
    def provided() -> Any:
        return parts[name]

    return Provide(provided, sync_to_thread=False)


async def open_real_ports(settings: RetrievalSettings, stack: AsyncExitStack) -> Ports:
    """Postgres, Milvus, the embedding service, the broker and the cache."""
    defaults = settings.limits.effective()
    database = await stack.enter_async_context(
        Database.open(settings.postgres, stored_memories=defaults.stored_memories)
    )
    usage = UsageMeter(database)
    await stack.enter_async_context(usage.running())
    meter = TokenQuota(database, usage, defaults=defaults)
    index = MilvusIndex(settings.milvus)
    stack.push_async_callback(index.close)
    tokens = InternalTokens(*settings.trust.secrets)
    embedder = HttpEmbedder(settings.endpoints.embedding_url, tokens, meter=meter)
    stack.push_async_callback(embedder.close)
    reranker = HttpReranker(settings.endpoints.embedding_url, tokens)
    stack.push_async_callback(reranker.close)
    cache: Redis = Redis.from_url(
        settings.redis.cache_url.get_secret_value(),
        socket_timeout=settings.redis.timeout_s,
        socket_connect_timeout=settings.redis.timeout_s,
        **settings.redis.tls_options(settings.redis.cache_url),
    )
    stack.push_async_callback(cache.aclose)
    await stack.enter_async_context(UseReports(index.uses, cache).running())
    kicker = CeleryKicker(settings.redis)
    kicker.start()
    stack.callback(kicker.close)
    touches = Touches(cache)
    await stack.enter_async_context(touches.running())
    return Ports(
        database=database,
        index=index,
        embedder=embedder,
        reranker=reranker,
        kicker=kicker,
        touches=touches,
        meter=meter,
        helpful={"index": index.ping, "embedding": embedder.ping, "cache": redis_check(cache)},
    )


def _assemble(settings: RetrievalSettings, ports: Ports) -> dict[str, Any]:
    generations = Generations(ports.database, ttl_s=settings.search.generation_cache_s)
    chunker = Chunker(ports.embedder, settings.write, meter=ports.meter)
    short_term = ShortTerm(ports.database, generations, chunker, embedder=ports.embedder, kicker=ports.kicker)
    searcher = Searcher(
        ports.database,
        Nominator(ports.index),
        ports.embedder,
        reranking=Reranking(ports.reranker, timeout_s=settings.search.rerank_timeout_s),
        generations=generations,
        touches=ports.touches,
        settings=settings.search,
    )
    return {
        "database": ports.database,
        "helpful": ports.helpful,
        "generations": generations,
        "writer": Writer(ports.database, generations, chunker, ports.kicker),
        "patcher": Patcher(ports.database, generations, chunker, ports.kicker),
        "markers": Markers(ports.database, generations, ports.kicker),
        "merger": Merger(ports.database, generations, ports.kicker),
        "importer": Importer(ports.database, generations, ports.kicker, meter=ports.meter),
        "searcher": searcher,
        "explainer": Explainer(ports.database, searcher),
        "context_packer": ContextPacker(searcher, short_term, generations),
        "short_term": short_term,
        "index_wait": IndexWait(ports.database, limit_s=settings.write.wait_index_s),
    }

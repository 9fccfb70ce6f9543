"""The embedding service, put together."""

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from litestar import Litestar

from memplane_core.observability.logs import get_logger
from memplane_core.security.internal import InternalTokens
from memplane_core.web.app import ServiceApp, build_app
from memplane_core.web.middleware import InternalAuth
from memplane_embedding.cache import CacheKeys, SharedCache, VectorCache
from memplane_embedding.metrics import WAITING
from memplane_embedding.models.manifest import MANIFEST, ModelFolderError
from memplane_embedding.pool import LANES, WorkerPool
from memplane_embedding.provider import OnnxProvider, Provider
from memplane_embedding.routes import embedding_routes
from memplane_embedding.service import EmbeddingService
from memplane_embedding.settings import EmbeddingSection, EmbeddingSettings
from memplane_embedding.upstream import UpstreamProvider

_log = get_logger(__name__)


def create_app() -> ServiceApp:
    """The application with settings from the environment; what the server is told to serve."""
    settings = EmbeddingSettings.load()
    try:
        return build(settings)
    except ModelFolderError as error:
        sys.stderr.write(f"embedding: {error}\n")
        raise SystemExit(78) from None


def build(settings: EmbeddingSettings) -> ServiceApp:
    """The application for `settings`. Raises ModelFolderError where a model cannot be served."""
    its = settings.embedding
    pool = WorkerPool(workers=its.workers, lane_limit=its.lane_limit)
    for lane in LANES:
        WAITING.labels(lane).set_function(partial(pool.waiting, lane))
    service = EmbeddingService(
        _providers(its, pool),
        default=its.default_model,
        cache=VectorCache(max_bytes=its.cache_bytes, shared=_shared_cache(settings)),
        keys=CacheKeys(settings.trust.internal_secret.get_secret_value()),
        max_text_bytes=its.max_text_bytes,
    )

    return build_app(
        embedding_routes(service, max_texts=its.max_texts, request_timeout_s=its.request_timeout_s),
        service="embedding",
        settings=settings,
        lifespan=[_running(service, pool)],
        checks={"model": service.check},
        middleware=[InternalAuth(InternalTokens(settings.trust.internal_secret.get_secret_value()))],
    )


def _running(service: EmbeddingService, pool: WorkerPool) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def running(_: Litestar) -> AsyncGenerator[None]:
        await service.start()
        _log.info("the default model is loaded", model=service.profiles().default)
        yield
        pool.close()
        await service.close()

    return running


def _shared_cache(settings: EmbeddingSettings) -> SharedCache | None:
    if settings.redis is None:
        return None
    return SharedCache(
        settings.redis.cache_url.get_secret_value(),
        timeout_s=settings.embedding.shared_cache_timeout_s,
        ttl_s=settings.embedding.shared_cache_ttl_s,
    )


def _providers(settings: EmbeddingSection, pool: WorkerPool) -> dict[str, Provider]:
    """Every model of the settings by its name."""
    providers: list[Provider] = [OnnxProvider(folder, pool) for folder in _folders(settings)]
    providers += [UpstreamProvider(upstream) for upstream in settings.upstreams]
    found: dict[str, Provider] = {}
    for provider in providers:
        if provider.profile.name in found:
            raise ModelFolderError(f"two models are called {provider.profile.name!r}")
        found[provider.profile.name] = provider
    if settings.default_model not in found:
        raise ModelFolderError(
            f"the default model {settings.default_model!r} is not in {str(settings.models_dir)!r}; build it with "
            f"`python -m memplane_embedding.models build {settings.default_model}`"
        )
    return found


def _folders(settings: EmbeddingSection) -> list[Path]:
    there = sorted(settings.models_dir.iterdir()) if settings.models_dir.is_dir() else []
    # A dot begins the name of a folder that is still being built.
    return [path for path in there if not path.name.startswith(".") and (path / MANIFEST).is_file()] + settings.folders

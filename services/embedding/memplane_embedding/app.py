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
from memplane_embedding.models.catalog import RERANKERS
from memplane_embedding.models.manifest import MANIFEST, ModelFolderError, RerankerManifest, read_folder
from memplane_embedding.pool import JOB_LANES, WorkerPool
from memplane_embedding.provider import OnnxProvider, Provider
from memplane_embedding.reranking import Reranking
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
    folders = _folders(its)
    rerankers = _rerankers(its, folders)
    pool = WorkerPool(workers=its.workers, lane_limit=its.lane_limit, rerank_limit=its.rerank_limit)
    for lane in JOB_LANES:
        WAITING.labels(lane).set_function(partial(pool.waiting, lane))
    reranking = Reranking(its.reranker, rerankers.get(its.reranker), pool, max_text_bytes=its.max_text_bytes)
    service = EmbeddingService(
        _providers(its, [folder for folder in folders if folder not in rerankers.values()], pool),
        default=its.default_model,
        cache=VectorCache(max_bytes=its.cache_bytes, shared=_shared_cache(settings)),
        keys=CacheKeys(settings.trust.secrets[0]),
        max_text_bytes=its.max_text_bytes,
        rerankers=rerankers,
    )

    return build_app(
        embedding_routes(service, reranking, max_texts=its.max_texts, request_timeout_s=its.request_timeout_s),
        service="embedding",
        settings=settings,
        lifespan=[_running(service, reranking, pool)],
        checks={"model": service.check},
        middleware=[InternalAuth(InternalTokens(*settings.trust.secrets))],
    )


def _running(
    service: EmbeddingService, reranking: Reranking, pool: WorkerPool
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def running(_: Litestar) -> AsyncGenerator[None]:
        try:
            await reranking.start()
            await service.start()
            _log.info("the default model is loaded", model=service.profiles().default)
            yield
        finally:
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
        tls=settings.redis.tls_options(settings.redis.cache_url),
    )


def _providers(settings: EmbeddingSection, folders: list[Path], pool: WorkerPool) -> dict[str, Provider]:
    """Every embedding model of the settings by its name."""
    providers: list[Provider] = [OnnxProvider(folder, pool) for folder in folders]
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


def _rerankers(settings: EmbeddingSection, folders: list[Path]) -> dict[str, Path]:
    """Those of the folders that hold rerankers, by name. The one that is switched on is among them."""
    found: dict[str, Path] = {}
    for folder in folders:
        manifest = read_folder(folder)
        if isinstance(manifest, RerankerManifest):
            if manifest.name in found:
                raise ModelFolderError(f"two rerankers are called {manifest.name!r}")
            found[manifest.name] = folder
    if settings.default_model in found:
        raise ModelFolderError(f"the default model {settings.default_model!r} is a reranker, which has no vectors")
    if settings.reranker and settings.reranker not in found:
        raise ModelFolderError(
            f"no reranker in {str(settings.models_dir)!r} is called {settings.reranker!r}; there are "
            f"{', '.join(sorted(found)) or 'none'}. `python -m memplane_embedding.models build` builds those that are "
            f"bundled: {', '.join(RERANKERS)}"
        )
    return found


def _folders(settings: EmbeddingSection) -> list[Path]:
    there = sorted(settings.models_dir.iterdir()) if settings.models_dir.is_dir() else []
    # A dot begins the name of a folder that is still being built.
    return [path for path in there if not path.name.startswith(".") and (path / MANIFEST).is_file()] + settings.folders

"""The client of the embedding service where a model's folder is replaced while the caller runs on."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest
from aiohttp import web

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.contracts.embedding import EMBED_PATH, PROFILES_PATH, EmbedRequest, EmbedResponse, EmbedResult
from memplane_core.domain.embedding import ModelProfile, ModelProfiles, Window
from memplane_core.domain.tenancy import TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.testing.ports import reserved_port

pytestmark = pytest.mark.anyio


class OneModel:
    """An embedding service whose only model makes vectors of `dim` numbers."""

    def __init__(self) -> None:
        self.dim = 4
        self.port = reserved_port()

    @asynccontextmanager
    async def running(self, *, query_cache_s: float = 600.0) -> AsyncGenerator[HttpEmbedder]:
        """A client of it."""
        app = web.Application()
        app.router.add_post(EMBED_PATH, self._embed)
        app.router.add_get(PROFILES_PATH, self._profiles)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        tokens = InternalTokens("a secret of thirty-two bytes or more")
        client = HttpEmbedder(f"http://127.0.0.1:{self.port}", tokens, query_cache_s=query_cache_s)
        try:
            yield client
        finally:
            await client.close()
            await runner.cleanup()

    async def _embed(self, request: web.Request) -> web.Response:
        asked = msgspec.msgpack.decode(await request.read(), type=EmbedRequest)
        results = [EmbedResult([Window(0, len(item.text))], None) for item in asked.items]
        vectors = np.ones((len(results), self.dim), "<f4") / np.float32(self.dim) ** 0.5
        answer = EmbedResponse(model="m", dim=self.dim, results=results, vectors=vectors.tobytes())
        return web.Response(body=msgspec.msgpack.encode(answer), content_type="application/x-msgpack")

    async def _profiles(self, _: web.Request) -> web.Response:
        profile = ModelProfile(
            name="m", dim=self.dim, max_tokens=512, span=0.1, anchor_low=0.7, anchor_high=0.9, multilingual=False
        )
        body = msgspec.msgpack.encode(ModelProfiles(default="m", models=[profile]))
        return web.Response(body=body, content_type="application/x-msgpack")


async def test_what_was_kept_of_the_model_before_is_forgotten(tenant: TenantId) -> None:
    service = OneModel()
    async with service.running() as client:
        kept = await client.embed_query(tenant, "asked before", model="m", timeout_s=5)
        assert (kept.shape, (await client.profile("m")).dim) == ((4,), 4)
        service.dim = 8
        assert await client.embed_query(tenant, "asked before", model="m", timeout_s=5) is kept
        assert (await client.embed_query(tenant, "asked first", model="m", timeout_s=5)).shape == (8,)
        assert (await client.embed_query(tenant, "asked before", model="m", timeout_s=5)).shape == (8,)
        assert (await client.profile("m")).dim == 8


async def test_the_vector_of_a_query_is_kept_no_longer_than_it_may_be(tenant: TenantId) -> None:
    async with OneModel().running(query_cache_s=0.0) as client:
        first = await client.embed_query(tenant, "asked twice", model="m", timeout_s=5)
        assert await client.embed_query(tenant, "asked twice", model="m", timeout_s=5) is not first

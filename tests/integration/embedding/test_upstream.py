"""Models of another server, against a real one on this machine that fails first."""

import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web
from pydantic import SecretStr

from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_embedding.settings import UpstreamSettings
from memplane_embedding.upstream import UpstreamProvider

pytestmark = pytest.mark.anyio

DIM = 8


def vector_of(text: str) -> FloatArray:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return 3 * np.random.default_rng(seed).standard_normal(DIM, np.float32)


Trouble = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Upstream:
    """Speaks OpenAI's shape; each of `troubles` is the answer to one request before the first good one."""

    def __init__(self) -> None:
        self.troubles: list[Trouble] = []
        self.requests: list[list[str]] = []
        self.headers: list[str] = []
        self.form = "float"
        self.dim = DIM

    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked["input"])
        self.headers.append(request.headers.get("Authorization", ""))
        if self.troubles:
            return await self.troubles.pop(0)(request)
        if any("poison" in text for text in asked["input"]):
            return web.json_response({"error": {"message": "this input is not allowed"}}, status=400)
        rows = [self._row(n, text) for n, text in enumerate(asked["input"])]
        return web.json_response({"object": "list", "data": rows[::-1], "model": asked["model"]})

    def _row(self, index: int, text: str) -> dict[str, object]:
        vector = vector_of(text)[: self.dim]
        packed = base64.b64encode(vector.tobytes()).decode()
        return {"index": index, "embedding": packed if self.form == "base64" else vector.tolist()}


@asynccontextmanager
async def serving(upstream: Upstream, **changes: object) -> AsyncGenerator[UpstreamProvider]:
    app = web.Application()
    app.router.add_post("/v1/embeddings", upstream.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    settings = UpstreamSettings.model_validate(
        {
            "name": "theirs",
            "url": f"http://{host}:{port}/v1",
            "key": SecretStr("k-1"),
            "dim": DIM,
            "max_tokens": 64,
            "timeout_s": 5,
            "batch_size": 4,
            **changes,
        }
    )
    provider = UpstreamProvider(settings)
    try:
        yield provider
    finally:
        await provider.close()
        await runner.cleanup()


def status(code: int, *, retry_after: str | None = None) -> Trouble:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text="busy", headers={"Retry-After": retry_after} if retry_after else {})

    return answer


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def nonsense(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>hello</html>")


def unit(text: str) -> FloatArray:
    return (vector_of(text) / np.linalg.norm(vector_of(text))).astype(np.float32)


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_failures_before_success_are_ridden_out(tenant: TenantId, form: str) -> None:
    upstream = Upstream()
    upstream.form = form
    upstream.troubles = [status(503), status(429, retry_after="0.1"), hang_up]
    async with serving(upstream) as provider:
        found = await provider.embed(tenant, [EmbedItem("one"), EmbedItem("two")], input_type="query", lane="query")
    assert len(upstream.requests) == 4
    assert upstream.headers[0] == "Bearer k-1"
    for embedded, text in zip(found, ("one", "two"), strict=True):
        assert embedded.vectors[0] == pytest.approx(unit(text), abs=1e-6)
        assert embedded.vectors.dtype == np.float32


async def test_text_that_is_refused_fails_alone(tenant: TenantId) -> None:
    upstream = Upstream()
    items = [EmbedItem(text) for text in ("a", "b", "poison", "c", "d")]
    async with serving(upstream) as provider:
        found = await provider.embed(tenant, items, input_type="passage", lane="write")
    assert [embedded.error is None for embedded in found] == [True, True, False, True, True]
    assert "this input is not allowed" in (found[2].error or "")
    assert found[3].vectors[0] == pytest.approx(unit("c"), abs=1e-6)


async def test_setting_that_makes_it_refuse_everything_is_no_fault_of_the_text(tenant: TenantId) -> None:
    upstream = Upstream()
    upstream.troubles = [status(400)] * 3
    async with serving(upstream) as provider:
        with pytest.raises(EmbeddingUnavailable, match="refuses every text"):
            await provider.embed(tenant, [EmbedItem("x")], input_type="passage", lane="write")


async def test_long_text_is_split_with_prefix_and_head_before_each_window(tenant: TenantId) -> None:
    upstream = Upstream()
    text = "0123456789" * 40
    async with serving(upstream, passage_prefix="passage: ") as provider:
        (found,) = await provider.embed(tenant, [EmbedItem(text, head="Mia: ")], input_type="passage", lane="bulk")
    sent = [part for request in upstream.requests for part in request]
    assert len(found.windows) == len(sent) > 3
    assert all(part.startswith("passage: Mia: ") for part in sent)
    assert found.windows[0].start == 0
    assert found.windows[-1].end == len(text)
    first = found.windows[0]
    assert found.vectors[0] == pytest.approx(unit("passage: Mia: " + text[first.start : first.end]), abs=1e-6)


@pytest.mark.parametrize(
    ("troubles", "complaint"),
    [
        ([status(401)], "answers 401"),
        ([nonsense], "cannot be read"),
        ([status(503, retry_after="9")], "answers 503"),
    ],
)
async def test_hopeless_answers_end_at_once(tenant: TenantId, troubles: list[Trouble], complaint: str) -> None:
    upstream = Upstream()
    upstream.troubles = troubles
    async with serving(upstream) as provider:
        with pytest.raises(EmbeddingUnavailable, match=complaint):
            await provider.embed(tenant, [EmbedItem("x")], input_type="query", lane="query")
    assert len(upstream.requests) == 1


async def test_vectors_of_another_length_are_refused(tenant: TenantId) -> None:
    upstream = Upstream()
    upstream.dim = DIM - 1
    async with serving(upstream) as provider:
        with pytest.raises(EmbeddingUnavailable, match="7 dimensions; the settings say 8"):
            await provider.embed(tenant, [EmbedItem("x")], input_type="query", lane="query")


async def test_server_that_stays_away_is_given_up_in_time(tenant: TenantId) -> None:
    async with serving(Upstream(), url="http://127.0.0.1:1/v1", timeout_s=0.5) as provider:
        with pytest.raises(EmbeddingUnavailable):
            await provider.embed(tenant, [EmbedItem("x")], input_type="query", lane="query")

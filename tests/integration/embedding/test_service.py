"""The service as a process: both APIs, refusals, load, and the client that others use."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import numpy as np
import psutil
import pytest

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.contracts.embedding import EMBED_PATH, EmbedRequest, EmbedResponse
from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.errors import EmbeddingUnavailable, InvalidRequest, NotFound
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.tokens import Signed

pytestmark = pytest.mark.anyio

E5, BGE, MINILM = "multilingual-e5-small", "bge-small-en-v1.5", "all-MiniLM-L6-v2"
SECRET = "a secret of thirty-two bytes or more"


def env_of(models_dir: Path, **settings: str) -> dict[str, str]:
    return {
        "MEMPLANE_TRUST__INTERNAL_SECRET": SECRET,
        "MEMPLANE_MODELS_DIR": str(models_dir),
        "MEMPLANE_EMBEDDING__DEFAULT_MODEL": MINILM,
        **settings,
    }


@asynccontextmanager
async def http(service: ServiceProcess, tenant: TenantId) -> AsyncGenerator[httpx2.AsyncClient]:
    principal = Principal(tenant=tenant, scopes=frozenset(), key_id="test", request_id="test-request")
    async with httpx2.AsyncClient(base_url=service.url, auth=Signed(SECRET, principal), timeout=60) as client:
        yield client


@asynccontextmanager
async def embedder(service: ServiceProcess, *, secret: str = SECRET) -> AsyncGenerator[HttpEmbedder]:
    made = HttpEmbedder(service.url, InternalTokens(secret))
    try:
        yield made
    finally:
        await made.close()


class TestOpenAiShape:
    async def test_float_and_base64_are_the_same_unit_vectors(self, service: ServiceProcess, tenant: TenantId) -> None:
        async with http(service, tenant) as client:
            floats, packed = [
                (
                    await client.post(
                        "/v1/embeddings", json={"input": ["one", "two"], "model": MINILM, "encoding_format": form}
                    )
                ).json()
                for form in ("float", "base64")
            ]
        assert floats["object"] == "list"
        assert floats["model"] == MINILM
        assert floats["usage"]["prompt_tokens"] == floats["usage"]["total_tokens"] == 6
        for n, (as_floats, as_text) in enumerate(zip(floats["data"], packed["data"], strict=True)):
            assert as_floats["index"] == as_text["index"] == n
            vector = np.array(as_floats["embedding"], np.float32)
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
            assert vector.tobytes() == base64.b64decode(as_text["embedding"])

    async def test_query_and_passage_differ_where_the_model_has_prefixes(
        self, service: ServiceProcess, tenant: TenantId
    ) -> None:
        async with http(service, tenant) as client:
            query, passage, default = [
                (await client.post("/v1/embeddings", json={"input": "car", "model": E5, **extra})).json()["data"]
                for extra in ({"input_type": "query"}, {"input_type": "passage"}, {})
            ]
        assert passage == default
        assert query != passage

    async def test_models_are_listed(self, service: ServiceProcess, tenant: TenantId) -> None:
        async with http(service, tenant) as client:
            listed = (await client.get("/v1/models")).json()["data"]
        assert {row["id"] for row in listed} == {E5, BGE, MINILM}
        assert [row["id"] for row in listed if row["default"]] == [MINILM]

    @pytest.mark.parametrize(
        ("body", "status", "pointer"),
        [
            ({"input": ""}, 422, "/input"),
            ({"input": ["a", ""]}, 422, "/input/1"),
            ({"input": []}, 422, "/input"),
            ({"input": ["a"] * 301}, 422, "/input"),
            ({"input": [1, 2]}, 422, "/input/0"),
            ({"input": [[1, 2]]}, 422, "/input/0"),
            ({"input": None}, 422, "/input"),
            ({"model": MINILM}, 422, "/input"),
            ({"input": "a", "model": "gpt"}, 404, "/model"),
            ({"input": "a", "dimensions": 100}, 422, "/dimensions"),
            ({"input": "a", "input_type": "poem"}, 422, "/input_type"),
            ({"input": "a", "encoding_format": "int8"}, 422, "/encoding_format"),
            ({"input": "a", "inputtype": "query"}, 422, "/inputtype"),
            ({"input": ["a", "half \ud800"]}, 422, "/input/1"),
            ({"input": "x" * 200_000}, 422, "/input"),
        ],
    )
    async def test_refusals_name_the_field(
        self, service: ServiceProcess, tenant: TenantId, body: dict[str, object], status: int, pointer: str
    ) -> None:
        async with http(service, tenant) as client:
            answer = await client.post("/v1/embeddings", content=json.dumps(body).encode())
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["errors"][0]["pointer"] == pointer

    @pytest.mark.parametrize("text", ["\ufdfa" * 5000, "\N{PARTY POPPER}" * 5000, "\x00", " ", "a" * 32768])
    async def test_odd_texts_get_a_vector(self, service: ServiceProcess, tenant: TenantId, text: str) -> None:
        async with http(service, tenant) as client:
            answer = await client.post("/v1/embeddings", json={"input": text, "model": E5})
        assert answer.status_code == 200
        assert np.linalg.norm(answer.json()["data"][0]["embedding"]) == pytest.approx(1, abs=1e-5)


class TestDoors:
    @pytest.mark.parametrize("path", ["/v1/models", "/internal/v1/models", "/nowhere"])
    async def test_nobody_without_a_token(self, service: ServiceProcess, path: str) -> None:
        async with httpx2.AsyncClient(base_url=service.url) as client:
            assert (await client.get(path)).status_code in {401, 404}
            assert (await client.get("/readyz")).json()["parts"] == {"model": "ok"}

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"\xc1", 400),
            (b"", 400),
            (msgspec.msgpack.encode({"model": MINILM}), 422),
            (msgspec.msgpack.encode([1]), 422),
            (b"\x84\xa5model\xa0\xaainput_type\xa5query\xa4lane\xa5query\xa5items\x91\x91\xa3\xed\xa0\x80", 400),
        ],
        ids=["no message", "empty", "field missing", "wrong type", "half a surrogate pair"],
    )
    async def test_bad_messages_are_refused(
        self, service: ServiceProcess, tenant: TenantId, body: bytes, status: int
    ) -> None:
        async with http(service, tenant) as client:
            answer = await client.post(EMBED_PATH, content=body)
        assert answer.status_code == status

    async def test_internal_route_answers_raw_floats(self, service: ServiceProcess, tenant: TenantId) -> None:
        items = [EmbedItem("short"), EmbedItem(""), EmbedItem("long text " * 500, "Mia: ")]
        request = EmbedRequest(model=MINILM, input_type="passage", lane="write", items=items)
        async with http(service, tenant) as client:
            answer = await client.post(EMBED_PATH, content=msgspec.msgpack.encode(request))
        found = msgspec.msgpack.decode(answer.content, type=EmbedResponse)
        counts = [len(result.windows) for result in found.results]
        assert counts[:2] == [1, 0]
        assert counts[2] > 1
        assert found.results[1].error == "is empty; there is nothing to embed"
        vectors = np.frombuffer(found.vectors, "<f4").reshape(sum(counts), found.dim)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)


class TestClient:
    async def test_batch_comes_back_in_order_with_errors_in_place(
        self, service: ServiceProcess, tenant: TenantId
    ) -> None:
        texts = [f"text number {n}" for n in range(280)]
        items = [EmbedItem("\ud800"), *map(EmbedItem, texts), EmbedItem(""), EmbedItem("你好 " * 2000)]
        async with embedder(service) as client:
            found = await client.embed_passages(tenant, items, model=MINILM, lane="bulk", timeout_s=60)
            (alone,) = await client.embed_passages(
                tenant, [EmbedItem(texts[-1])], model=MINILM, lane="write", timeout_s=60
            )
        assert len(found) == len(items)
        assert found[0].error == "holds half of a surrogate pair, which is no text"
        assert found[-2].error == "is empty; there is nothing to embed"
        assert found[280].vectors.tobytes() == alone.vectors.tobytes()
        assert found[-1].windows[-1].end == len(items[-1].text)
        assert len({embedded.vectors.tobytes() for embedded in found[1:281]}) == 280

    async def test_query_that_cannot_be_embedded_is_the_callers_fault(
        self, service: ServiceProcess, tenant: TenantId
    ) -> None:
        async with embedder(service) as client:
            for text in ("", "\udfff", "x" * 200_000):
                with pytest.raises(InvalidRequest) as caught:
                    await client.embed_query(tenant, text, model=MINILM, timeout_s=10)
                assert caught.value.faults[0].pointer == "/query"
            with pytest.raises(NotFound, match="'gpt'"):
                await client.embed_query(tenant, "x", model="gpt", timeout_s=10)
            with pytest.raises(NotFound, match="'gpt'"):
                await client.profile("gpt")

    async def test_long_query_has_one_vector(self, service: ServiceProcess, tenant: TenantId) -> None:
        async with embedder(service) as client:
            vector = await client.embed_query(tenant, "where is the car? " * 300, model=MINILM, timeout_s=10)
        assert vector.shape == (384,)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)

    async def test_wrong_secret_is_no_answer(self, service: ServiceProcess, tenant: TenantId) -> None:
        async with embedder(service, secret="quite another secret of thirty-two bytes") as client:
            with pytest.raises(EmbeddingUnavailable, match="401"):
                await client.embed_query(tenant, "x", model=MINILM, timeout_s=10)

    async def test_service_that_dies_and_returns(self, models_dir: Path, tenant: TenantId) -> None:
        with ServiceProcess("memplane_embedding", env=env_of(models_dir)) as process:
            async with embedder(process) as client:
                profile = await client.profile(MINILM)
                hot = await client.embed_query(tenant, "hot", model=MINILM, timeout_s=10)
                process.kill()
                assert await client.embed_query(tenant, "hot", model=MINILM, timeout_s=1) is hot
                assert await client.profile(MINILM) == profile
                for _ in range(6):
                    with pytest.raises(EmbeddingUnavailable):
                        await client.embed_query(tenant, "cold", model=MINILM, timeout_s=2)
                times: list[float] = []
                for _ in range(5):
                    began = time.perf_counter()
                    with pytest.raises(EmbeddingUnavailable):
                        await client.embed_query(tenant, "cold", model=MINILM, timeout_s=2)
                    times.append(time.perf_counter() - began)
                assert min(times) < 0.02  # retries alone would take ten times that
                process.start()
                deadline = time.monotonic() + 20
                while True:
                    try:
                        again = await client.embed_query(tenant, "hot ", model=MINILM, timeout_s=2)
                        break
                    except EmbeddingUnavailable:
                        assert time.monotonic() < deadline
                        await asyncio.sleep(0.1)
                assert again.shape == hot.shape

    async def test_service_that_hangs_is_soon_asked_no_more(self, models_dir: Path, tenant: TenantId) -> None:
        with ServiceProcess("memplane_embedding", env=env_of(models_dir)) as process:
            async with embedder(process) as client:
                await client.embed_query(tenant, "warm", model=MINILM, timeout_s=10)
                process.signal(signal.SIGSTOP)
                for n in range(5):
                    with pytest.raises(EmbeddingUnavailable, match="did not answer within"):
                        await client.embed_query(tenant, f"cold {n}", model=MINILM, timeout_s=0.2)
                began = time.perf_counter()
                with pytest.raises(EmbeddingUnavailable):
                    await client.embed_query(tenant, "cold", model=MINILM, timeout_s=5)
                assert time.perf_counter() - began < 1
                process.signal(signal.SIGCONT)
                # Writes have a breaker of their own.
                (found,) = await client.embed_passages(
                    tenant, [EmbedItem("x")], model=MINILM, lane="write", timeout_s=5
                )
                assert found.error is None


class TestLoad:
    async def test_busy_lane_refuses_with_a_time_and_the_client_gives_up_or_waits(
        self, models_dir: Path, tenant: TenantId
    ) -> None:
        env = env_of(
            models_dir,
            MEMPLANE_EMBEDDING__WORKERS="1",
            MEMPLANE_EMBEDDING__MAX_TEXTS="30",
            MEMPLANE_EMBEDDING__LANE_LIMIT="30",
        )
        with ServiceProcess("memplane_embedding", env=env) as process:
            async with embedder(process) as client, http(process, tenant) as raw:
                await client.embed_query(tenant, "warm", model=MINILM, timeout_s=10)
                long = [EmbedItem(f"{n} " + "a long text " * 1500) for n in range(30)]
                filling = asyncio.create_task(
                    client.embed_passages(tenant, long, model=MINILM, lane="bulk", timeout_s=60)
                )
                few = EmbedRequest(
                    model=MINILM, input_type="passage", lane="bulk", items=[EmbedItem(str(n)) for n in range(5)]
                )
                while True:
                    assert not filling.done(), "the lane was never full"
                    answer = await raw.post(EMBED_PATH, content=msgspec.msgpack.encode(few))
                    if answer.status_code == 503:
                        break
                    await asyncio.sleep(0.1)
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["code"] == "embedding_unavailable"
                query = await client.embed_query(tenant, "quick one", model=MINILM, timeout_s=5)
                assert query.shape == (384,)
                assert not filling.done()
                with pytest.raises(EmbeddingUnavailable, match="wait in the bulk lane"):
                    await client.embed_passages(tenant, few.items, model=MINILM, lane="bulk", timeout_s=0.5)
                filling.cancel()

    async def test_work_of_a_caller_that_left_is_dropped(self, models_dir: Path, tenant: TenantId) -> None:
        env = env_of(models_dir, MEMPLANE_EMBEDDING__WORKERS="1")
        with ServiceProcess("memplane_embedding", env=env) as process:
            async with embedder(process) as client:
                long = [EmbedItem(f"{n} " + "a long text " * 1500) for n in range(200)]
                with pytest.raises(EmbeddingUnavailable):
                    await client.embed_passages(tenant, long, model=MINILM, lane="write", timeout_s=1)
                began = time.perf_counter()
                await client.embed_passages(tenant, [EmbedItem("next")], model=MINILM, lane="bulk", timeout_s=30)
                # All of it would take far longer than this; what had begun may end first.
                assert time.perf_counter() - began < 10

    async def test_only_the_models_asked_for_are_loaded(self, models_dir: Path, tenant: TenantId) -> None:
        def resident() -> int:
            leader = psutil.Process(process.pid)
            return max(part.memory_info().rss for part in (leader, *leader.children(recursive=True)))

        with ServiceProcess("memplane_embedding", env=env_of(models_dir)) as process:
            async with embedder(process) as client:
                await client.embed_query(tenant, "x", model=MINILM, timeout_s=10)
                before = resident()
                vector = await client.embed_query(tenant, "x", model=E5, timeout_s=20)
                assert vector.shape == (384,)
                assert before < 250e6
                assert resident() > before + 150e6


class TestStart:
    def test_missing_default_model_says_how_to_build_it(self, tmp_path: Path) -> None:
        program = "from memplane_embedding.app import create_app; create_app()"
        env = {**os.environ, **env_of(tmp_path)}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 78
        assert "python -m memplane_embedding.models build all-MiniLM-L6-v2" in done.stderr

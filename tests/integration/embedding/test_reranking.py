"""The cross-encoder: sense, the same score whatever is beside a pair, bounds, and how it is switched on."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx2
import msgspec
import numpy as np
import pytest

from memplane_core.clients.embedding import HttpEmbedder, HttpReranker
from memplane_core.contracts.embedding import MAX_RERANK_TEXTS, RERANK_PATH, RerankRequest, RerankResponse
from memplane_core.domain.errors import EmbeddingUnavailable, InvalidRequest, NotFound
from memplane_core.domain.ports import Reranker
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.tokens import Signed
from memplane_embedding.cross_encoder import CrossEncoder
from memplane_embedding.models.manifest import ModelFolderError

pytestmark = pytest.mark.anyio

MINILM, MARCO = "all-MiniLM-L6-v2", "ms-marco-MiniLM-L-12-v2"
SECRET = "a secret of thirty-two bytes or more"
QUERY = "Where is Mia's car?"
TEXTS = [
    "The recipe needs two eggs and milk.",
    "Mia parked the car on the third level.",
    "Mia likes tea.",
    "",
    "[SEP] [CLS] 两个鸡蛋和一杯牛奶 \N{PARTY POPPER}\x00",
    "We talked about the weather and the garden. " * 30,
]

LONG = ["the weather and the garden " * 30] * MAX_RERANK_TEXTS


def env_of(models_dir: Path, **settings: str) -> dict[str, str]:
    return {
        "MEMPLANE_TRUST__INTERNAL_SECRET": SECRET,
        "MEMPLANE_MODELS_DIR": str(models_dir),
        "MEMPLANE_EMBEDDING__DEFAULT_MODEL": MINILM,
        "MEMPLANE_EMBEDDING__RERANKER": MARCO,
        **settings,
    }


@asynccontextmanager
async def reranker(service: ServiceProcess) -> AsyncGenerator[Reranker]:
    made = HttpReranker(service.url, InternalTokens(SECRET))
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def embedder(service: ServiceProcess) -> AsyncGenerator[HttpEmbedder]:
    made = HttpEmbedder(service.url, InternalTokens(SECRET))
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def http(service: ServiceProcess, tenant: TenantId) -> AsyncGenerator[httpx2.AsyncClient]:
    principal = Principal(tenant=tenant, scopes=frozenset(), key_id="test", request_id="test-request")
    async with httpx2.AsyncClient(base_url=service.url, auth=Signed(SECRET, principal), timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def model(models_dir: Path) -> CrossEncoder:
    return CrossEncoder(models_dir / MARCO)


@pytest.fixture(scope="module")
def reranking(models_dir: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess("memplane_embedding", env=env_of(models_dir)) as process:
        yield process


class TestModel:
    def test_text_that_answers_the_query_scores_far_above_the_others(self, model: CrossEncoder) -> None:
        scores = [model.score(QUERY, text) for text in TEXTS]
        assert int(np.argmax(scores)) == 1
        assert scores[1] > 0.9
        assert scores[0] < 0.01
        assert all(0 <= score <= 1 for score in scores)

    def test_same_score_alone_and_from_eight_threads(self, model: CrossEncoder) -> None:
        alone = [model.score(QUERY, text) for text in TEXTS]
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(model.score, [QUERY] * 8 * len(TEXTS), TEXTS * 8))
        assert together == alone * 8

    def test_longer_side_loses_its_end(self, model: CrossEncoder) -> None:
        filler = "the weather and the garden " * 300
        answer = TEXTS[1]
        assert model.score(QUERY, answer + filler) == model.score(QUERY, answer + filler + "more and more")
        assert model.score(QUERY, f"{answer} {filler}") > model.score(QUERY, f"{filler} {answer}")
        assert 0 <= model.score(filler, filler) <= 1

    def test_markers_spelled_out_are_letters(self, model: CrossEncoder) -> None:
        assert model.score(QUERY, "[SEP]") != model.score(QUERY, "")

    @pytest.mark.parametrize(
        ("folder", "manifest", "complaint"),
        [
            (MINILM, None, "holds an embedding model"),
            (MARCO, {"kind": "reranker", "name": "mine"}, "max_tokens"),
            (MARCO, {"kind": "poem", "name": "mine", "max_tokens": 64}, "poem"),
            (MARCO, {"kind": "reranker", "name": "mine", "max_tokens": 64, "graph": "absent.onnx"}, r"absent\.onnx"),
            (MINILM, {"kind": "reranker", "name": "mine", "max_tokens": 64}, "one number a pair"),
        ],
    )
    def test_folder_that_cannot_be_used_says_why(
        self, models_dir: Path, tmp_path: Path, folder: str, manifest: dict[str, object] | None, complaint: str
    ) -> None:
        for path in (models_dir / folder).iterdir():
            (tmp_path / path.name).symlink_to(path.resolve())
        if manifest is not None:
            (tmp_path / "model.json").unlink()
            (tmp_path / "model.json").write_text(json.dumps(manifest))
        with pytest.raises(ModelFolderError, match=complaint):
            CrossEncoder(tmp_path)


class TestService:
    async def test_scores_come_in_order_and_do_not_depend_on_what_runs_beside(
        self, reranking: ServiceProcess, model: CrossEncoder, tenant: TenantId
    ) -> None:
        expected = np.array([model.score(QUERY, text) for text in TEXTS], np.float32)
        async with reranker(reranking) as client:
            scores = await client.rerank(tenant, QUERY, TEXTS, timeout_s=30)
            many = await asyncio.gather(
                *(client.rerank(TenantId(uuid4()), QUERY, TEXTS[::-1], timeout_s=30) for _ in range(4))
            )
            none = await client.rerank(tenant, QUERY, [], timeout_s=30)
        assert scores.tobytes() == expected.tobytes()
        assert all(found.tobytes() == expected[::-1].tobytes() for found in many)
        assert none.shape == (0,)

    async def test_route_answers_raw_floats_and_the_name(self, reranking: ServiceProcess, tenant: TenantId) -> None:
        body = msgspec.msgpack.encode(RerankRequest(query=QUERY, texts=TEXTS[:2]))
        async with http(reranking, tenant) as client:
            answer = await client.post(RERANK_PATH, content=body)
        found = msgspec.msgpack.decode(answer.content, type=RerankResponse)
        assert found.model == MARCO
        assert len(found.scores) == 8

    @pytest.mark.parametrize(
        ("body", "status", "pointer"),
        [
            ({"query": "", "texts": ["a"]}, 422, "/query"),
            ({"query": "x" * 200_000, "texts": ["a"]}, 422, "/query"),
            ({"query": "a", "texts": ["a"] * (MAX_RERANK_TEXTS + 1)}, 422, "/texts"),
            ({"query": "a", "texts": ["a", "x" * 200_000]}, 422, "/texts/1"),
            ({"query": "a", "texts": [1]}, 422, ""),
            ({"query": "a"}, 422, ""),
        ],
    )
    async def test_refusals_name_the_field(
        self, reranking: ServiceProcess, tenant: TenantId, body: dict[str, object], status: int, pointer: str
    ) -> None:
        async with http(reranking, tenant) as client:
            answer = await client.post(RERANK_PATH, content=msgspec.msgpack.encode(body))
        assert answer.status_code == status
        assert answer.json()["errors"][0]["pointer"] == pointer

    async def test_client_refuses_what_no_message_can_carry(self, reranking: ServiceProcess, tenant: TenantId) -> None:
        async with reranker(reranking) as client:
            with pytest.raises(InvalidRequest, match="/query"):
                await client.rerank(tenant, "\ud800", ["a"], timeout_s=5)
            with pytest.raises(InvalidRequest, match="/texts/1"):
                await client.rerank(tenant, "a", ["a", "\ud800"], timeout_s=5)

    async def test_nobody_without_a_token(self, reranking: ServiceProcess) -> None:
        async with httpx2.AsyncClient(base_url=reranking.url) as client:
            assert (await client.post(RERANK_PATH)).status_code == 401

    async def test_reranker_is_no_embedding_model(self, reranking: ServiceProcess, tenant: TenantId) -> None:
        async with http(reranking, tenant) as client:
            listed = (await client.get("/v1/models")).json()["data"]
            answer = await client.post("/v1/embeddings", json={"input": "a", "model": MARCO})
        assert MARCO not in {row["id"] for row in listed}
        assert answer.status_code == 404
        assert answer.json()["errors"][0]["pointer"] == "/model"
        assert f"'{MARCO}' is a reranker" in answer.json()["detail"]
        async with embedder(reranking) as client:
            with pytest.raises(NotFound, match="is a reranker"):
                await client.embed_query(tenant, "a", model=MARCO, timeout_s=5)

    async def test_off_unless_switched_on(self, service: ServiceProcess, tenant: TenantId) -> None:
        async with reranker(service) as client:
            with pytest.raises(NotFound, match="MEMPLANE_EMBEDDING__RERANKER"):
                await client.rerank(tenant, QUERY, TEXTS, timeout_s=5)


class TestLoad:
    async def test_full_lane_refuses_and_queries_and_writes_pass_it(self, models_dir: Path, tenant: TenantId) -> None:
        env = env_of(models_dir, MEMPLANE_EMBEDDING__WORKERS="1", MEMPLANE_EMBEDDING__RERANK_LIMIT="50")
        body = msgspec.msgpack.encode(RerankRequest(query=QUERY, texts=LONG))
        with ServiceProcess("memplane_embedding", env=env) as process:
            async with http(process, tenant) as raw:
                both = [asyncio.create_task(raw.post(RERANK_PATH, content=body)) for _ in range(2)]
                (first,), (filling,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                refused = await first
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.json()["code"] == "embedding_unavailable"
                for input_type in ("query", "passage"):
                    answer = await raw.post("/v1/embeddings", json={"input": input_type, "input_type": input_type})
                    assert answer.status_code == 200
                assert not filling.done()
                assert (await filling).status_code == 200

    async def test_work_of_a_caller_that_left_is_dropped(self, models_dir: Path, tenant: TenantId) -> None:
        env = env_of(models_dir, MEMPLANE_EMBEDDING__WORKERS="1")
        with ServiceProcess("memplane_embedding", env=env) as process:
            async with reranker(process) as client:
                began = time.perf_counter()
                await client.rerank(tenant, QUERY, LONG[:4], timeout_s=60)
                one = (time.perf_counter() - began) / 4
                tries = [client.rerank(tenant, QUERY, LONG, timeout_s=0.2) for _ in range(3)]
                found = await asyncio.gather(*tries, return_exceptions=True)
                assert all(isinstance(error, EmbeddingUnavailable) for error in found)
                began = time.perf_counter()
                await client.rerank(tenant, QUERY, TEXTS[:1], timeout_s=60)
                # All that was asked would take 150 times the cost of one.
                assert time.perf_counter() - began < 50 * one


class TestStart:
    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"MEMPLANE_EMBEDDING__RERANKER": "huge"}, f"is called 'huge'; there are {MARCO}"),
            ({"MEMPLANE_EMBEDDING__RERANKER": MINILM}, f"is called '{MINILM}'"),
            ({"MEMPLANE_EMBEDDING__DEFAULT_MODEL": MARCO}, "is a reranker, which has no vectors"),
        ],
    )
    def test_wrong_name_stops_the_service_and_says_what_there_is(
        self, models_dir: Path, settings: dict[str, str], complaint: str
    ) -> None:
        program = "from memplane_embedding.app import create_app; create_app()"
        env = {**os.environ, **env_of(models_dir, **settings)}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 78
        assert complaint in done.stderr

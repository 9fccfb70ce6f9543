"""Reads the weights of BERT-shaped encoders out of the files that carry them."""

import struct
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_BLOCK: Final = 32
_Q4_BLOCK: Final = np.dtype([("scale", "<f2"), ("nibbles", "u1", _BLOCK // 2)])
_PACK_MAGIC: Final = b"E5S1"


class WeightsError(Exception):
    """A weight file that is not of the form it should have."""


class BlockMatrix(msgspec.Struct, frozen=True):
    """A matrix in blocks of 32 columns, each with a scale: `value = code * scale`.

    Attributes:
        codes: int8 in -8..7, shape (rows, columns).
        scales: float16, shape (rows, columns / 32).
    """

    codes: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float16]

    def dense(self) -> FloatArray:
        """The same as float32."""
        rows, columns = self.codes.shape
        blocks = self.codes.astype(np.float32).reshape(rows, columns // _BLOCK, _BLOCK)
        return (blocks * self.scales.astype(np.float32)[..., None]).reshape(rows, columns)


class Linear(msgspec.Struct, frozen=True):
    """`x @ weight.T + bias`; `weight` has the shape (outputs, inputs)."""

    weight: FloatArray
    bias: FloatArray


class Norm(msgspec.Struct, frozen=True):
    """A layer normalisation's gain and shift."""

    weight: FloatArray
    bias: FloatArray


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One transformer layer with its normalisations after each half."""

    query: Linear
    key: Linear
    value: Linear
    attended: Linear
    attended_norm: Norm
    up: Linear
    down: Linear
    down_norm: Norm


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """A BERT encoder's weights. `positions` already holds the embedding of token type 0."""

    heads: int
    epsilon: float
    words: BlockMatrix | FloatArray
    positions: FloatArray
    norm: Norm
    layers: list[Layer]


class _Config(msgspec.Struct, frozen=True):
    num_attention_heads: int
    num_hidden_layers: int
    layer_norm_eps: float


def read_safetensors(weights: bytes, config: bytes) -> Encoder:
    """An encoder from a `model.safetensors` and the `config.json` beside it. Raises WeightsError."""
    from safetensors import SafetensorError  # noqa: PLC0415 - of the build alone
    from safetensors.numpy import load  # noqa: PLC0415

    try:
        tensors = {name: value.astype(np.float32) for name, value in load(weights).items() if value.dtype.kind == "f"}
        shape = msgspec.json.decode(config, type=_Config)
        return _from_tensors(tensors, shape)
    except (SafetensorError, msgspec.DecodeError) as error:
        raise WeightsError(str(error)) from error
    except KeyError as error:
        raise WeightsError(f"the tensor {error} is missing") from error


def _from_tensors(tensors: dict[str, FloatArray], config: _Config) -> Encoder:
    def linear(name: str) -> Linear:
        return Linear(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(name: str) -> Norm:
        return Norm(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def layer(n: int) -> Layer:
        at = f"encoder.layer.{n}"
        return Layer(
            query=linear(f"{at}.attention.self.query"),
            key=linear(f"{at}.attention.self.key"),
            value=linear(f"{at}.attention.self.value"),
            attended=linear(f"{at}.attention.output.dense"),
            attended_norm=norm(f"{at}.attention.output.LayerNorm"),
            up=linear(f"{at}.intermediate.dense"),
            down=linear(f"{at}.output.dense"),
            down_norm=norm(f"{at}.output.LayerNorm"),
        )

    return Encoder(
        heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        words=tensors["embeddings.word_embeddings.weight"],
        positions=tensors["embeddings.position_embeddings.weight"]
        + tensors["embeddings.token_type_embeddings.weight"][0],
        norm=norm("embeddings.LayerNorm"),
        layers=[layer(n) for n in range(config.num_hidden_layers)],
    )


class _Reader:
    """Reads little-endian fields one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: str) -> tuple[int, ...]:
        form = "<" + form
        fields = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return fields

    def take_float(self) -> float:
        (value,) = struct.unpack_from("<f", self._data, self._at)
        self._at += 4
        return float(value)

    def take_bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def skip(self, size: int) -> None:
        self._at += size


class _Pack:
    """A packed 4-bit encoder: a header, a tokenizer, a directory of tensors, the tensors.

    Matrices are rows of Q4_0 blocks: a float16 scale, then 16 bytes whose low nibbles are the first 16 values and whose
    high nibbles the other 16, each shifted by 8.
    """

    def __init__(self, data: bytes) -> None:
        if data[:4] != _PACK_MAGIC:
            raise WeightsError("the file does not begin as a packed encoder does")
        self._data = data
        reader = _Reader(data)
        reader.skip(8)
        (self.hidden, self.layers, self.heads, self.inner, self.vocabulary, self.positions, _) = reader.take("7i")
        self.epsilon = reader.take_float()
        (block,) = reader.take("i")
        if block != _BLOCK:
            raise WeightsError(f"blocks of {block} values; expected {_BLOCK}")
        pieces, *_ = reader.take("5i")
        (pieces_size,) = reader.take("Q")
        reader.skip(4 * (pieces + 1) + 4 * pieces + pieces_size)
        _, normaliser_size = reader.take("iI")
        reader.skip(normaliser_size)
        (count,) = reader.take("i")
        self._extents = dict(self._entry(reader) for _ in range(count))

    @staticmethod
    def _entry(reader: _Reader) -> tuple[str, tuple[int, int]]:
        (length,) = reader.take("H")
        name = reader.take_bytes(length).decode()
        _, _, offset, size = reader.take("BIQQ")
        return name, (offset, size)

    def floats(self, name: str) -> FloatArray:
        offset, size = self._extents[name]
        return np.frombuffer(self._data, "<f4", size // 4, offset).astype(np.float32)

    def blocks(self, name: str, *, rows: int, columns: int) -> BlockMatrix:
        offset, _ = self._extents[name]
        raw = np.frombuffer(self._data, _Q4_BLOCK, rows * columns // _BLOCK, offset).reshape(rows, columns // _BLOCK)
        nibbles = raw["nibbles"]
        codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.int8) - np.int8(8)
        return BlockMatrix(codes.reshape(rows, columns), raw["scale"].astype(np.float16))

    def linear(self, name: str, *, outputs: int, inputs: int) -> Linear:
        return Linear(self.blocks(f"{name}.w", rows=outputs, columns=inputs).dense(), self.floats(f"{name}.b"))

    def norm(self, name: str) -> Norm:
        return Norm(self.floats(f"{name}.w"), self.floats(f"{name}.b"))


def read_q4_pack(data: bytes) -> Encoder:
    """An encoder from a packed 4-bit file. Raises WeightsError."""
    try:
        pack = _Pack(data)
        return Encoder(
            heads=pack.heads,
            epsilon=pack.epsilon,
            words=pack.blocks("emb.word", rows=pack.vocabulary, columns=pack.hidden),
            positions=pack.floats("emb.pos").reshape(pack.positions, pack.hidden)
            + pack.floats("emb.type")[: pack.hidden],
            norm=pack.norm("emb.ln"),
            layers=[_pack_layer(pack, n) for n in range(pack.layers)],
        )
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise WeightsError(str(error)) from error
    except KeyError as error:
        raise WeightsError(f"the tensor {error} is missing") from error


def _pack_layer(pack: _Pack, n: int) -> Layer:
    hidden, inner = pack.hidden, pack.inner
    return Layer(
        query=pack.linear(f"l{n}.q", outputs=hidden, inputs=hidden),
        key=pack.linear(f"l{n}.k", outputs=hidden, inputs=hidden),
        value=pack.linear(f"l{n}.v", outputs=hidden, inputs=hidden),
        attended=pack.linear(f"l{n}.ao", outputs=hidden, inputs=hidden),
        attended_norm=pack.norm(f"l{n}.aln"),
        up=pack.linear(f"l{n}.fi", outputs=inner, inputs=hidden),
        down=pack.linear(f"l{n}.fo", outputs=hidden, inputs=inner),  # codespell:ignore fo
        down_norm=pack.norm(f"l{n}.oln"),
    )

"""An ONNX model in memory: token ids to unit vectors, one text a call.

Dynamic int8 scales activations by the largest value of the whole batch, so that a text's vector would depend on its
neighbours. One text a call, computed by one thread, has the same bytes alone, in a batch and from many threads.
"""

import hashlib
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from memplane_core.domain.embedding import InputType
from memplane_core.domain.index import FloatArray
from memplane_embedding.models.manifest import MANIFEST, Manifest, ModelFolderError, is_complete, read_manifest
from memplane_embedding.tokens import TextTokens, TokenIds, WindowTokenizer

_TYPES: Final[dict[str, type[np.signedinteger[Any]]]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_PROBE: Final = np.array([0, 1, 2], np.int64)
_VECTOR, _STATES = 2, 3
"""Ranks of an output that is one vector a text, and of one that is a vector a token."""


class _Value(Protocol):
    """An input or output of a graph."""

    name: str
    type: str


class _Session(Protocol):
    """What is used of an onnxruntime session, which has no types of its own."""

    def get_inputs(self) -> list[_Value]: ...

    def get_outputs(self) -> list[_Value]: ...

    def run(self, output_names: list[str], input_feed: dict[str, Any]) -> list[npt.NDArray[Any]]: ...


class OnnxModel:
    """A model folder, loaded. Every method may be called from several threads at once.

    Args:
        folder: With `model.json`, the graph it names, and `tokenizer.json`.

    Raises:
        ModelFolderError: The folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.manifest = read_manifest(folder)
        if not is_complete(folder, self.manifest):
            raise ModelFolderError(f"{str(folder)!r} is not complete; build the model again")
        self._tokenizer = WindowTokenizer(folder / "tokenizer.json", max_tokens=self.manifest.max_tokens)
        self._session = _open(folder / self.manifest.graph)
        self._inputs = {item.name: _TYPES.get(item.type) for item in self._session.get_inputs()}
        for name, kind in self._inputs.items():
            if name not in _INPUTS or kind is None:
                raise ModelFolderError(f"{str(folder)!r}: the graph wants {name!r}, which is not known here")
        self._output = self._find_output(folder)

    def split(self, text: str, *, head: str, input_type: InputType) -> TextTokens:
        """Token windows of a text with the model's prefix and `head` before each.

        Raises UnicodeEncodeError for half of a surrogate pair.
        """
        prefix = self.manifest.query_prefix if input_type == "query" else self.manifest.passage_prefix
        return self._tokenizer.split(prefix + head, text)

    def embed(self, ids: TokenIds) -> FloatArray:
        """The unit vector of one window, shape (dim,). Raises ValueError where the model answers none."""
        (answer,) = self._session.run([self._output], self._feed(ids))
        vector = self._pooled(np.asarray(answer, np.float32)[0])
        norm = float(np.linalg.norm(vector))
        if not np.isfinite(norm) or norm == 0.0:
            raise ValueError("the model has no vector for this text")
        return vector / np.float32(norm)

    def _feed(self, ids: TokenIds) -> dict[str, Any]:
        row = ids[None, :]
        values = {
            "input_ids": row,
            "attention_mask": np.ones_like(row),
            "token_type_ids": np.zeros_like(row),
            "position_ids": np.arange(ids.size, dtype=np.int64)[None, :],
        }
        return {name: values[name].astype(kind or np.int64, copy=False) for name, kind in self._inputs.items()}

    def _pooled(self, answer: FloatArray) -> FloatArray:
        if answer.ndim == 1:
            return answer
        match self.manifest.pooling:
            case "mean":
                return answer.mean(axis=0)
            case "cls":
                return answer[0]
            case "last":
                return answer[-1]

    def _find_output(self, folder: Path) -> str:
        """The output to read: one vector a text where there is one, else one a token."""
        names = [item.name for item in self._session.get_outputs()]
        found: dict[int, str] = {}
        for name, answer in zip(names, self._session.run(names, self._feed(_PROBE)), strict=True):
            if answer.shape[-1:] == (self.manifest.dim,):
                found.setdefault(answer.ndim, name)
        for rank in (_VECTOR, _STATES):
            if rank in found:
                return found[rank]
        raise ModelFolderError(f"{str(folder)!r}: no output of the graph has {self.manifest.dim} dimensions")


def _open(graph: Path) -> _Session:
    options = cast("Any", ort.SessionOptions())
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # plans are kept for every length seen
    options.log_severity_level = 3
    try:
        return cast("_Session", ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"]))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFolderError(f"{str(graph)!r}: {error}") from error


def model_build(folder: Path, manifest: Manifest) -> str:
    """Changes whenever the model does: the manifest's own build, or a hash of the files of a folder made by hand."""
    if manifest.build:
        return manifest.build
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and (path.name == MANIFEST or path.suffix in {".onnx", ".data", ".json"}):
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()

"""An ONNX model in memory: token ids to unit vectors, one text a call.

Dynamic int8 scales activations by the largest value of the whole batch, so that a text's vector would depend on its
neighbours. One text a call, computed by one thread, has the same bytes alone, in a batch and from many threads.
"""

import hashlib
from pathlib import Path

import numpy as np

from memplane_core.domain.embedding import InputType
from memplane_core.domain.index import FloatArray
from memplane_embedding.models.manifest import MANIFEST, Manifest, ModelFolderError, is_complete, read_manifest
from memplane_embedding.runtime import Graph
from memplane_embedding.tokens import TextTokens, TokenIds, WindowTokenizer

_VECTOR, _STATES = 2, 3
"""Ranks of an output that is one vector a text, and of one that is a vector a token."""


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
        self._graph = Graph(folder / self.manifest.graph)
        self._output = self._find_output(folder)

    def split(self, text: str, *, head: str, input_type: InputType) -> TextTokens:
        """Token windows of a text with the model's prefix and `head` before each.

        Raises UnicodeEncodeError for half of a surrogate pair.
        """
        prefix = self.manifest.query_prefix if input_type == "query" else self.manifest.passage_prefix
        return self._tokenizer.split(prefix + head, text)

    def embed(self, ids: TokenIds) -> FloatArray:
        """The unit vector of one window, shape (dim,). Raises ValueError where the model answers none."""
        vector = self._pooled(self._graph.run(self._output, ids))
        norm = float(np.linalg.norm(vector))
        if not np.isfinite(norm) or norm == 0.0:
            raise ValueError("the model has no vector for this text")
        return vector / np.float32(norm)

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
        found: dict[int, str] = {}
        for name, shape in self._graph.probe().items():
            if shape[-1:] == (self.manifest.dim,):
                found.setdefault(len(shape), name)
        for rank in (_VECTOR, _STATES):
            if rank in found:
                return found[rank]
        raise ModelFolderError(f"{str(folder)!r}: no output of the graph has {self.manifest.dim} dimensions")


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

"""`model.json`: what a model folder says about itself. Read at run time; needs nothing that only the build needs."""

from pathlib import Path
from typing import Final, Literal

import msgspec

from memplane_core.domain.embedding import ModelProfile

MANIFEST: Final = "model.json"

Pooling = Literal["mean", "cls", "last"]


class ModelFolderError(Exception):
    """A model folder that cannot be used; the message says which file of it is wrong and how."""


class FileRecord(msgspec.Struct, frozen=True):
    """A file of a model folder, as it was written."""

    name: str
    size: int
    sha256: str


class BuiltFolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the manifest of any model folder says. Only `name` and `max_tokens` must be given by hand.

    Attributes:
        name: As it is called in requests and settings.
        max_tokens: Longest input, special tokens and prefixes included.
        licence: Of the weights.
        sources: SHA-256 of each file that the model was built from.
        build: Changes with every change of sources, graph or settings; "" in a folder made by hand.
        graph: File name of the ONNX graph.
        files: Everything the build wrote beside the manifest.
    """

    name: str
    max_tokens: int
    licence: str = ""
    sources: dict[str, str] = {}
    build: str = ""
    graph: str = "model.onnx"
    files: list[FileRecord] = []


class Manifest(BuiltFolder, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An embedding model's folder and how to use it. By hand, `dim` must be given too.

    Attributes:
        kind: Apart from rerankers.
        dim: Length of its vectors.
        pooling: How token vectors become one, for a graph that answers one vector a token.
        query_prefix: Put before a query.
        passage_prefix: Put before a passage.
        span: Cosine distance below the pool's best at which the dense match is 0.
        anchor_low: Cosine of an unrelated pair.
        anchor_high: Cosine of a sure match.
        anchor_cjk: What to add to both for a query in Chinese or Japanese.
        multilingual: False for a model that knows English alone.
    """

    kind: Literal["embedding"] = "embedding"
    dim: int
    pooling: Pooling = "mean"
    query_prefix: str = ""
    passage_prefix: str = ""
    span: float = 0.4
    anchor_low: float = 0.0
    anchor_high: float = 1.0
    anchor_cjk: float = 0.0
    multilingual: bool = False

    @property
    def profile(self) -> ModelProfile:
        """What callers need to know of the model."""
        return ModelProfile(
            name=self.name,
            dim=self.dim,
            max_tokens=self.max_tokens,
            span=self.span,
            anchor_low=self.anchor_low,
            anchor_high=self.anchor_high,
            anchor_cjk=self.anchor_cjk,
            multilingual=self.multilingual,
        )


class RerankerManifest(BuiltFolder, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cross-encoder's folder: its graph answers one logit for a pair of texts, higher for a better fit."""

    kind: Literal["reranker"] = "reranker"


class _Kind(msgspec.Struct, frozen=True):
    kind: Literal["embedding", "reranker"] = "embedding"


def read_folder(folder: Path) -> Manifest | RerankerManifest:
    """The manifest of a model folder of either kind. Raises ModelFolderError where it is absent or wrong."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        reranker = msgspec.json.decode(data, type=_Kind).kind == "reranker"
        manifest = msgspec.json.decode(data, type=RerankerManifest if reranker else Manifest)
    except FileNotFoundError:
        raise ModelFolderError(f"{str(folder)!r} holds no {MANIFEST}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise ModelFolderError(f"{str(path)!r}: {error}") from error
    if manifest.max_tokens < 8 or (isinstance(manifest, Manifest) and manifest.dim < 1):
        raise ModelFolderError(f"{str(path)!r}: dim must be at least 1 and max_tokens at least 8")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an embedding model's folder. Raises ModelFolderError where it is absent, wrong or another's."""
    manifest = read_folder(folder)
    if isinstance(manifest, RerankerManifest):
        raise ModelFolderError(f"{str(folder)!r} holds a reranker, which has no vectors")
    return manifest


def read_reranker(folder: Path) -> RerankerManifest:
    """The manifest of a reranker's folder. Raises ModelFolderError where it is absent, wrong or another's."""
    manifest = read_folder(folder)
    if isinstance(manifest, Manifest):
        raise ModelFolderError(f"{str(folder)!r} holds an embedding model, which scores no pairs")
    return manifest


def is_complete(folder: Path, manifest: BuiltFolder) -> bool:
    """Whether every file of the manifest is there with its size; contents are not read."""
    return all(
        (folder / record.name).is_file() and (folder / record.name).stat().st_size == record.size
        for record in manifest.files
    )

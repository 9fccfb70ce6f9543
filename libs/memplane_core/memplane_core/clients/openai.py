"""Embeddings from any server that speaks OpenAI's `POST /embeddings`."""

import base64
import binascii
from collections.abc import Sequence

import msgspec
import numpy as np

from memplane_core.clients.upstream import Upstream, UpstreamAway, UpstreamRefused, quoted
from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.index import FloatArray


class TextRefused(Exception):
    """The server will not embed one of the texts; another try would end the same way."""


class _Row(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float] | str


class _Answer(msgspec.Struct, frozen=True):
    data: list[_Row]


class _Request(msgspec.Struct, frozen=True, omit_defaults=True):
    model: str
    input: list[str]
    encoding_format: str
    dimensions: int | None = None


class OpenAIEmbeddings:
    """One model of one server.

    Args:
        base_url: Up to and without `/embeddings`, as `https://host/v1`.
        key: Sent as a bearer token; `""` sends none.
        model: The server's name for it.
        dim: Length that its vectors must have.
        dimensions: Ask for `dim`, of servers that can shorten vectors.
    """

    def __init__(self, base_url: str, *, key: str, model: str, dim: int, dimensions: bool = False) -> None:
        self._upstream = Upstream(base_url, key=key, service=f"the embedding upstream {model!r}")
        self._model = model
        self._dim = dim
        self._dimensions = dim if dimensions else None

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> FloatArray:
        """Unit vectors, shape (len(texts), dim). Tries again, within the time, what may pass: 429, 5xx, no connection.

        Raises:
            TextRefused: One of the texts is at fault.
            EmbeddingUnavailable: No answer in time, or one that makes no sense.
        """
        request = _Request(self._model, list(texts), "float", self._dimensions)
        try:
            answer = await self._upstream.post("/embeddings", msgspec.json.encode(request), timeout_s=timeout_s)
        except UpstreamRefused as error:
            raise TextRefused(quoted(error.answer).removeprefix(": ")) from error
        except UpstreamAway as error:
            raise EmbeddingUnavailable(f"{error}{quoted(error.answer)}", retry_after=error.retry_after) from error
        try:
            return self._vectors(msgspec.json.decode(answer.body, type=_Answer), count=len(texts))
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise EmbeddingUnavailable(f"the embedding upstream's answer cannot be read: {error}") from error

    async def close(self) -> None:
        """Give back the connections."""
        await self._upstream.close()

    def _vectors(self, answer: _Answer, *, count: int) -> FloatArray:
        rows = sorted(answer.data, key=lambda row: row.index)
        if [row.index for row in rows] != list(range(count)):
            raise ValueError(f"{len(rows)} vectors for {count} texts")
        vectors = np.stack([_vector(row.embedding) for row in rows])
        if vectors.shape[1] != self._dim:
            raise ValueError(f"vectors of {vectors.shape[1]} dimensions; the settings say {self._dim}")
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.all(np.isfinite(norms)) or not np.all(norms > 0):
            raise ValueError("a vector without a direction")
        return (vectors / norms).astype(np.float32)


def _vector(value: list[float] | str) -> FloatArray:
    """A row in either of the two encodings; some servers choose for themselves."""
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4").astype(np.float32)
    return np.array(value, np.float32)

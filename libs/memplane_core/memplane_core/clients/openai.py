"""Embeddings from any server that speaks OpenAI's `POST /embeddings`."""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import stamina

from memplane_core.clients.http import HttpAnswer, ServiceHttp, ServiceTimeout, ServiceUnreachable
from memplane_core.domain.errors import EmbeddingUnavailable
from memplane_core.domain.index import FloatArray

_REFUSALS: Final = frozenset((400, 413, 422))
_PASSING: Final = frozenset((408, 409, 425, 429))
_LONGEST_PAUSE_S: Final = 20.0


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


class _Busy(Exception):
    """Worth another try after `pause_s`."""

    def __init__(self, detail: str, pause_s: float | None) -> None:
        super().__init__(detail)
        self.pause_s = pause_s


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
        self._http = ServiceHttp(base_url, service=f"the embedding upstream {model!r}")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
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
        body = msgspec.json.encode(request)
        deadline = asyncio.get_running_loop().time() + timeout_s

        def pause(error: Exception) -> bool | float:
            """Whether to try again, and after how many seconds where the server says so."""
            if not isinstance(error, _Busy) or error.pause_s is None:
                return isinstance(error, _Busy | ServiceUnreachable)
            return error.pause_s if asyncio.get_running_loop().time() + error.pause_s < deadline else False

        try:
            async with asyncio.timeout_at(deadline):
                async for attempt in stamina.retry_context(
                    on=pause, attempts=None, timeout=timeout_s, wait_initial=0.2, wait_max=5.0, wait_jitter=0.2
                ):
                    with attempt:
                        return await self._ask(body, count=len(texts), timeout_s=timeout_s)
        except TimeoutError as error:
            raise EmbeddingUnavailable(
                f"the embedding upstream had no answer within {timeout_s:g} s", retry_after=self._http.retry_after_s
            ) from error
        except (_Busy, ServiceUnreachable, ServiceTimeout) as error:
            raise EmbeddingUnavailable(str(error), retry_after=self._http.retry_after_s) from error
        raise AssertionError("a retry context ends by a return or an error")

    async def close(self) -> None:
        """Give back the connections."""
        await self._http.close()

    async def _ask(self, body: bytes, *, count: int, timeout_s: float) -> FloatArray:
        answer = await self._http.call(
            "POST", "/embeddings", timeout_s=timeout_s, repeatable=True, headers=self._headers, body=body
        )
        if answer.status in _REFUSALS:
            raise TextRefused(_detail(answer))
        if answer.status in _PASSING or answer.status >= 500:
            raise _Busy(f"the embedding upstream answers {answer.status}: {_detail(answer)}", _retry_after(answer))
        if answer.status != 200:
            raise EmbeddingUnavailable(
                f"the embedding upstream answers {answer.status}: {_detail(answer)}", retry_after=30
            )
        try:
            return self._vectors(msgspec.json.decode(answer.body, type=_Answer), count=count)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise EmbeddingUnavailable(f"the embedding upstream's answer cannot be read: {error}") from error

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


def _retry_after(answer: HttpAnswer) -> float | None:
    try:
        return min(max(0.05, float(answer.headers.get("Retry-After", ""))), _LONGEST_PAUSE_S)
    except ValueError:
        return None


def _detail(answer: HttpAnswer) -> str:
    return answer.body[:300].decode(errors="replace")

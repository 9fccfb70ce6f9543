"""The embedding service as retrieval and the workers see it: vectors, and scores of texts against a query."""

import asyncio
import hashlib
import math
from collections.abc import Sequence
from typing import Final, TypeVar
from uuid import UUID

import msgspec
import numpy as np
import stamina
import structlog
import uuid_utils
from cachetools import TTLCache

from memplane_core.background import together
from memplane_core.clients.http import HttpAnswer, ServiceHttp, ServiceTimeout, ServiceUnreachable
from memplane_core.contracts.embedding import (
    EMBED_PATH,
    PROFILES_PATH,
    RERANK_PATH,
    EmbedRequest,
    EmbedResponse,
    RerankRequest,
    RerankResponse,
)
from memplane_core.domain.embedding import EmbedItem, InputType, Lane, ModelProfile, ModelProfiles
from memplane_core.domain.errors import EmbeddingUnavailable, InvalidRequest, NotFound, QuotaExceeded, invalid
from memplane_core.domain.index import FloatArray
from memplane_core.domain.ports import EmbeddedText, TokenMeter
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.security.internal import InternalTokens

T = TypeVar("T")

_PROFILES_FRESH_S: Final = 60.0
_PROFILES_TIMEOUT_S: Final = 5.0
_ITEMS_A_CALL: Final = 256
_BYTES_A_CALL: Final = 8 * 1024 * 1024
_KEPT_OVERHEAD: Final = 300
_NOBODY: Final = TenantId(UUID(int=0))
_HALF: Final = "holds half of a surrogate pair, which is no text"
_NO_TEXT: Final = EmbeddedText([], np.empty((0, 0), np.float32), _HALF)


class _Refusal(msgspec.Struct, frozen=True):
    """What is read of a problem."""

    detail: str = ""


class _Busy(Exception):
    """The service asks to come back."""

    def __init__(self, detail: str, pause_s: float) -> None:
        super().__init__(detail)
        self.pause_s = pause_s


class HttpEmbedder:
    """An `Embedder` over HTTP. Make it anywhere, use it in one event loop, and `close` it there.

    Query vectors are kept in this process for a while: a query asked again costs no call. Erasures do not reach them.

    Args:
        base_url: Of the embedding service.
        tokens: Sign the calls.
        query_cache_bytes: Of query vectors kept.
        query_cache_s: For how long each is.
        meter: Allows and counts the tokens of queries and writes; bulk work is the installation's own.
    """

    def __init__(
        self,
        base_url: str,
        tokens: InternalTokens,
        *,
        query_cache_bytes: int = 16 * 1024 * 1024,
        query_cache_s: float = 600.0,
        meter: TokenMeter | None = None,
    ) -> None:
        self._meter = meter
        self._lines: dict[Lane, _Line] = {
            "query": _Line(base_url, tokens),
            "write": _Line(base_url, tokens),
            "bulk": _Line(base_url, tokens),
        }
        self._queries: TTLCache[bytes, FloatArray] = TTLCache(query_cache_bytes, query_cache_s, getsizeof=_kept_size)
        self._profiles: ModelProfiles | None = None
        self._profiles_until = 0.0
        self._known: dict[str, ModelProfile] = {}
        self._dims: dict[str, int] = {}

    async def embed_query(self, tenant: TenantId, text: str, *, model: str, timeout_s: float) -> FloatArray:
        """A read-only vector of shape (dim,).

        Raises:
            InvalidRequest: The text cannot be embedded.
            QuotaExceeded: The tenant has no tokens left for it today.
            NotFound: No model is called that.
            EmbeddingUnavailable: No answer in time.
        """
        key = _query_key(tenant, text, model=model)
        kept = self._queries.get(key)
        if kept is not None:
            return kept
        answer = await self._embed(tenant, [EmbedItem(text)], model, "query", "query", timeout_s=timeout_s)
        (embedded,) = _embedded(answer)
        if embedded.error is not None:
            raise invalid("/query", embedded.error)
        vector = embedded.vectors[0]
        if _kept_size(vector) <= self._queries.maxsize:
            self._queries[key] = vector
        return vector

    async def embed_passages(
        self, tenant: TenantId, items: Sequence[EmbedItem], *, model: str, lane: Lane, timeout_s: float
    ) -> list[EmbeddedText]:
        """Windows and vectors for each item, in order; an item that cannot be embedded has an `error`.

        Raises:
            NotFound: No model is called that.
            QuotaExceeded: The tenant has too few tokens left for them today.
            EmbeddingUnavailable: No answer in time.
        """
        sent = [item for item in items if _is_text(item.head + item.text)]
        calls = [self._embed(tenant, part, model, "passage", lane, timeout_s=timeout_s) for part in _parts(sent)]
        answers = await together(calls)
        found = iter([embedded for answer in answers for embedded in _embedded(answer)])
        return [next(found) if _is_text(item.head + item.text) else _NO_TEXT for item in items]

    async def profiles(self) -> ModelProfiles:
        """The models served, as known a minute ago, or when they were last told. Raises EmbeddingUnavailable."""
        now = asyncio.get_running_loop().time()
        if self._profiles is None or now >= self._profiles_until:
            try:
                self._profiles = await self._lines["query"].call(
                    "GET", PROFILES_PATH, ModelProfiles, tenant=_NOBODY, body=None, timeout_s=_PROFILES_TIMEOUT_S
                )
            except EmbeddingUnavailable:
                if self._profiles is None:
                    raise
            self._profiles_until = now + _PROFILES_FRESH_S
            self._known |= {profile.name: profile for profile in self._profiles.models}
        return self._profiles

    async def profile(self, model: str) -> ModelProfile:
        """One model's profile, cached until its vectors have another length.

        Raises EmbeddingUnavailable, or NotFound for an unknown model.
        """
        if model not in self._known:
            await self.profiles()
        if model not in self._known:
            raise NotFound(f"no model is called {model!r}; there are {', '.join(sorted(self._known))}")
        return self._known[model]

    async def ping(self) -> None:
        """Return when the service answers. Raises EmbeddingUnavailable."""
        await self._lines["query"].ping()

    async def close(self) -> None:
        """Give back the connections."""
        await asyncio.gather(*(line.close() for line in self._lines.values()))

    async def _embed(
        self,
        tenant: TenantId,
        items: list[EmbedItem],
        model: str,
        input_type: InputType,
        lane: Lane,
        *,
        timeout_s: float,
    ) -> EmbedResponse:
        meter = None if lane == "bulk" else self._meter
        allowance = None if meter is None else await meter.allowance(tenant)
        request = EmbedRequest(
            model=model,
            input_type=input_type,
            lane=lane,
            items=items,
            most_tokens=None if allowance is None else allowance.left,
        )
        body = msgspec.msgpack.encode(request)
        try:
            answer = await self._lines[lane].call(
                "POST", EMBED_PATH, EmbedResponse, tenant=tenant, body=body, timeout_s=timeout_s
            )
        except QuotaExceeded as error:
            raise error if allowance is None else allowance.exceeded(str(error)) from None
        if meter is not None and answer.tokens:
            await meter.spent(tenant, answer.tokens)
        rows = sum(len(result.windows) for result in answer.results)
        if len(answer.results) != len(items) or len(answer.vectors) != rows * answer.dim * 4:
            raise EmbeddingUnavailable("the embedding service's answer does not fit the question")
        self._notice(model, answer.dim)
        return answer

    def _notice(self, model: str, dim: int) -> None:
        """Forget what is known of a model that is another one by now, as its vectors' length shows."""
        if self._dims.setdefault(model, dim) != dim:
            self._dims[model] = dim
            self._queries.clear()
            self._known.pop(model, None)
            self._profiles_until = 0.0


class HttpReranker:
    """A `Reranker` over HTTP. Make it anywhere, use it in one event loop, and `close` it there.

    Args:
        base_url: Of the embedding service.
        tokens: Sign the calls.
    """

    def __init__(self, base_url: str, tokens: InternalTokens) -> None:
        self._line = _Line(base_url, tokens)

    async def rerank(self, tenant: TenantId, query: str, texts: Sequence[str], *, timeout_s: float) -> FloatArray:
        """How well each text answers the query, 0 to 1: read-only, shape (len(texts),).

        Raises:
            EmbeddingUnavailable: No answer in time, or too much is waiting.
            NotFound: No reranker is switched on.
            InvalidRequest: A query, or texts, that it cannot take.
        """
        if not _is_text(query):
            raise invalid("/query", _HALF)
        for n, text in enumerate(texts):
            if not _is_text(text):
                raise invalid(f"/texts/{n}", _HALF)
        body = msgspec.msgpack.encode(RerankRequest(query=query, texts=list(texts)))
        answer = await self._line.call(
            "POST", RERANK_PATH, RerankResponse, tenant=tenant, body=body, timeout_s=timeout_s
        )
        if len(answer.scores) != 4 * len(texts):
            raise EmbeddingUnavailable("the embedding service's answer does not fit the question")
        return np.frombuffer(answer.scores, "<f4")

    async def close(self) -> None:
        """Give back the connections."""
        await self._line.close()


class _Line:
    """Calls of one lane, with a breaker of its own: writes that time out in a full lane say nothing about queries."""

    def __init__(self, base_url: str, tokens: InternalTokens) -> None:
        self._http = ServiceHttp(base_url, service="the embedding service", name="embedding")
        self._tokens = tokens

    async def close(self) -> None:
        await self._http.close()

    async def ping(self) -> None:
        """Return when the service says that it is ready. Raises EmbeddingUnavailable."""
        try:
            answer = await self._http.call("GET", "/readyz", timeout_s=1.5, repeatable=True, attempts=1)
        except (ServiceUnreachable, ServiceTimeout) as error:
            raise self._unavailable(str(error)) from None
        if answer.status != 200:
            raise self._unavailable(f"the embedding service answers {answer.status}")

    async def call(
        self, method: str, path: str, type_: type[T], *, tenant: TenantId, body: bytes | None, timeout_s: float
    ) -> T:
        """Ask until there is an answer, or no hope of one within the time.

        Raises EmbeddingUnavailable, NotFound or InvalidRequest.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s

        def pause(error: Exception) -> bool | float:
            """How long to wait where the service asks for it and the time allows it."""
            return error.pause_s if isinstance(error, _Busy) and now() + error.pause_s < deadline else False

        try:
            async for attempt in stamina.retry_context(on=pause, attempts=None, timeout=None):
                with attempt:
                    left = max(deadline - now(), 0.001)
                    return self._read(await self._ask(method, path, tenant=tenant, body=body, timeout_s=left), type_)
        except _Busy as error:
            raise EmbeddingUnavailable(str(error), retry_after=math.ceil(error.pause_s)) from None
        except (ServiceUnreachable, ServiceTimeout) as error:
            raise self._unavailable(str(error)) from error
        raise AssertionError("a retry context ends by a return or an error")

    async def _ask(
        self, method: str, path: str, *, tenant: TenantId, body: bytes | None, timeout_s: float
    ) -> HttpAnswer:
        headers = self._headers(tenant)
        return await self._http.call(method, path, timeout_s=timeout_s, repeatable=True, headers=headers, body=body)

    def _read(self, answer: HttpAnswer, type_: type[T]) -> T:
        if answer.status == 200:
            try:
                return msgspec.msgpack.decode(answer.body, type=type_)
            except msgspec.DecodeError as error:
                raise self._unavailable(f"the embedding service's answer cannot be read: {error}") from error
        detail = _detail(answer)
        if answer.status == 503:
            raise _Busy(detail, _retry_after(answer))
        if answer.status == 404:
            raise NotFound(detail)
        if answer.status == 403:
            raise QuotaExceeded(detail)
        if answer.status in {400, 413, 422}:
            raise InvalidRequest(detail)
        raise self._unavailable(f"the embedding service answers {answer.status}: {detail}")

    def _headers(self, tenant: TenantId) -> dict[str, str]:
        bound = structlog.contextvars.get_contextvars().get("request_id")
        request_id = bound if isinstance(bound, str) else uuid_utils.uuid7().hex
        principal = Principal(tenant=tenant, scopes=frozenset(), key_id="service", request_id=request_id)
        return {"Authorization": f"Bearer {self._tokens.sign(principal)}", "Content-Type": "application/x-msgpack"}

    def _unavailable(self, detail: str) -> EmbeddingUnavailable:
        return EmbeddingUnavailable(detail, retry_after=self._http.retry_after_s)


def _embedded(answer: EmbedResponse) -> list[EmbeddedText]:
    """Each item's windows with its rows of the vectors, which are views of the answer and read-only."""
    vectors = np.frombuffer(answer.vectors, "<f4").reshape(-1, answer.dim)
    found: list[EmbeddedText] = []
    at = 0
    for result in answer.results:
        found.append(EmbeddedText(result.windows, vectors[at : at + len(result.windows)], result.error))
        at += len(result.windows)
    return found


def _is_text(text: str) -> bool:
    """False for one with half of a surrogate pair, which no message can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parts(items: Sequence[EmbedItem]) -> list[list[EmbedItem]]:
    """Items in order, in calls of bounded size."""
    parts: list[list[EmbedItem]] = []
    size = 0
    for item in items:
        its = 4 * (len(item.text) + len(item.head))
        if not parts or len(parts[-1]) >= _ITEMS_A_CALL or size + its > _BYTES_A_CALL:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += its
    return parts


def _query_key(tenant: TenantId, text: str, *, model: str) -> bytes:
    """Names a query without keeping its text. Raises InvalidRequest for half of a surrogate pair."""
    try:
        encoded = msgspec.msgpack.encode((tenant.bytes, model, text))
    except UnicodeEncodeError:
        raise invalid("/query", _HALF) from None
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _kept_size(vector: FloatArray) -> int:
    return vector.nbytes + _KEPT_OVERHEAD


def _retry_after(answer: HttpAnswer) -> float:
    try:
        return max(0.05, float(answer.headers.get("Retry-After", "")))
    except ValueError:
        return 0.5


def _detail(answer: HttpAnswer) -> str:
    try:
        return msgspec.json.decode(answer.body, type=_Refusal).detail or str(answer.status)
    except msgspec.DecodeError:
        return answer.body[:200].decode(errors="replace")

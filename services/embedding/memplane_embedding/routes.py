"""The routes of the embedding service. All of them want an internal token."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from memplane_core.contracts.embedding import (
    EMBED_PATH,
    PROFILES_PATH,
    RERANK_PATH,
    EmbedRequest,
    EmbedResponse,
    EmbedResult,
    RerankRequest,
    RerankResponse,
)
from memplane_core.domain.embedding import Lane
from memplane_core.domain.errors import EmbeddingUnavailable, Fault, InvalidRequest, MalformedRequest, invalid
from memplane_core.web.bodies import decode_json
from memplane_core.web.request import ServiceRequest
from memplane_embedding.openai import EmbeddingsAnswer, EmbeddingsRequest, ModelsAnswer, answer_of, items_of, models_of
from memplane_embedding.provider import Embedded
from memplane_embedding.reranking import Reranking
from memplane_embedding.service import EmbeddingService

T = TypeVar("T")

MSGPACK: Final = "application/x-msgpack"
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_BULK_FROM: Final = 65
"""Passages in one request of the public shape from which on they are bulk work."""


def embedding_routes(
    service: EmbeddingService, reranking: Reranking, *, max_texts: int, request_timeout_s: float
) -> list[HTTPRouteHandler]:
    """Handlers over `service` and `reranking`.

    Args:
        service: Embeds.
        reranking: Scores pairs.
        max_texts: Most texts of one request.
        request_timeout_s: Longest that one may take.
    """

    async def run(request: ServiceRequest, work: Coroutine[Any, Any, T]) -> T:
        return await while_wanted(request, work, timeout_s=request_timeout_s)

    @post("/v1/embeddings", status_code=200, request_max_body_size=_MAX_BODY_BYTES)
    async def embeddings(request: ServiceRequest) -> EmbeddingsAnswer:
        asked = decode_json(await request.body(), EmbeddingsRequest)
        items = items_of(asked, max_texts=max_texts)
        lane: Lane = "query" if asked.input_type == "query" else "write" if len(items) < _BULK_FROM else "bulk"
        profile = service.provider(asked.model).profile
        work = service.embed(
            request.principal.tenant, items, model=profile.name, input_type=asked.input_type, lane=lane
        )
        return answer_of(asked, await run(request, work), model=profile.name, dim=profile.dim)

    @get("/v1/models")
    async def models() -> ModelsAnswer:
        return models_of(service.profiles())

    @post(EMBED_PATH, status_code=200, request_max_body_size=_MAX_BODY_BYTES)
    async def embed(request: ServiceRequest) -> Response[bytes]:
        asked = decode_msgpack(await request.body(), EmbedRequest)
        if len(asked.items) > max_texts:
            raise invalid("/items", f"has {len(asked.items)} texts; at most {max_texts} are taken at once")
        profile = service.provider(asked.model).profile
        work = service.embed_metered(
            request.principal.tenant,
            asked.items,
            model=profile.name,
            input_type=asked.input_type,
            lane=asked.lane,
            most_tokens=asked.most_tokens,
        )
        metered = await run(request, work)
        found = metered.embedded
        answer = EmbedResponse(
            model=profile.name,
            dim=profile.dim,
            results=[EmbedResult(embedded.windows, embedded.error) for embedded in found],
            vectors=_joined(found),
            tokens=metered.tokens,
        )
        return Response(msgspec.msgpack.encode(answer), media_type=MSGPACK)

    @get(PROFILES_PATH)
    async def profiles() -> Response[bytes]:
        return Response(msgspec.msgpack.encode(service.profiles()), media_type=MSGPACK)

    @post(RERANK_PATH, status_code=200, request_max_body_size=_MAX_BODY_BYTES)
    async def rerank(request: ServiceRequest) -> Response[bytes]:
        name = reranking.name
        asked = decode_msgpack(await request.body(), RerankRequest)
        scores = await run(request, reranking.scores(request.principal.tenant, asked.query, asked.texts))
        answer = RerankResponse(model=name, scores=scores.astype("<f4").tobytes())
        return Response(msgspec.msgpack.encode(answer), media_type=MSGPACK)

    return [embeddings, models, embed, profiles, rerank]


async def while_wanted(request: ServiceRequest, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
    """Do `work`, or give it up as soon as the caller has gone or the time is over. The body must have been read.

    Raises EmbeddingUnavailable in both cases.
    """
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((doing, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        reason = "the caller has gone" if gone.done() else f"the work was not done within {timeout_s:g} s"
        raise EmbeddingUnavailable(reason, retry_after=5)
    finally:
        doing.cancel()
        gone.cancel()


async def _disconnected(request: ServiceRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def decode_msgpack(body: bytes, type_: type[T]) -> T:
    """Read `body` as a `type_`. Raises MalformedRequest or InvalidRequest."""
    try:
        return msgspec.msgpack.decode(body, type=type_)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error), faults=[Fault("", str(error))]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the body is not MessagePack: {error}") from None


def _joined(found: list[Embedded]) -> bytes:
    return b"".join(np.ascontiguousarray(embedded.vectors, "<f4").tobytes() for embedded in found)

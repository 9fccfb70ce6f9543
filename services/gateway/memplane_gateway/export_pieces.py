"""Asks the retrieval service for one piece of something long, so that each piece can be asked for again."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from memplane_core.domain.errors import MemplaneError, Unavailable
from memplane_core.web.problems import Problem
from memplane_core.web.request import ServiceRequest
from memplane_gateway.forwarding import Forwarder

_PAUSE_S: Final = 2.0


async def ask(
    forwarder: Forwarder,
    request: ServiceRequest,
    *,
    path: str,
    body: bytes,
    query: Mapping[str, str | int] | None = None,
    patience_s: float = 0.0,
) -> bytes:
    """Post a piece that may be repeated, for a caller who may administer memories, and return the answer's body.

    Args:
        forwarder: Knows where to.
        request: Of the caller.
        path: Of the piece.
        body: What is asked.
        query: Parameters of the query string.
        patience_s: How long a service that is away is asked again: one that restarts need not end what is half done.

    Raises:
        MemplaneError: What the service answers, as if it had happened here, or that it is away.
    """
    ends_at = time.monotonic() + patience_s
    while True:
        try:
            answer = await forwarder.forward(
                request, "memories:admin", path=path, method="POST", body=body, query=query, repeatable=True
            )
            if (answer.status_code or 500) < 400:
                return answer.content
            raise _error_of(answer.content, retry_after=answer.headers.get("Retry-After"))
        except Unavailable as error:
            pause_s = min(error.retry_after or 1, _PAUSE_S)
            if time.monotonic() + pause_s > ends_at:
                raise
        await asyncio.sleep(pause_s)


def _error_of(body: bytes, *, retry_after: str | None) -> MemplaneError:
    problem = msgspec.json.decode(body, type=Problem)
    kind = next((kind for kind in _kinds(MemplaneError) if kind.code == problem.code), MemplaneError)
    extra = {name: value for name in ("id", "quota", "limit", "used") if (value := getattr(problem, name)) is not None}
    seconds = int(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    return kind(problem.detail, faults=problem.errors, retry_after=seconds, **extra)


def _kinds(kind: type[MemplaneError]) -> Iterator[type[MemplaneError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)

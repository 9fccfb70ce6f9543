"""Requests to the gateway's own routes, made inside of its process on behalf of whoever looks at a page."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
from litestar.types import HTTPScope, Message, Receive, Scope, Send

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY
from memplane_core.domain.errors import Fault
from memplane_core.web.problems import Problem
from memplane_core.web.request import ServiceRequest

T = TypeVar("T")

_HANDED_ON: Final = (b"host", b"x-forwarded-for")
"""Of the headers of the page's request: what tells where it comes from."""


class Refused(Exception):
    """A route did not do what a page asked it for.

    Attributes:
        status: Of its answer.
        detail: A sentence for whoever looks.
        faults: What is wrong with which field.
        request_id: Of the page's request, which is the route's as well.
    """

    def __init__(self, status: int, detail: str, *, faults: list[Fault], request_id: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.faults = faults
        self.request_id = request_id


class Answer(msgspec.Struct, frozen=True):
    """What a route answered.

    Attributes:
        operator: `admin` or `ops`, where one of those keys was recognised; else empty.
    """

    status: int
    body: bytes
    operator: str

    def read(self, kind: type[T]) -> T:
        """The body of an answer that is no problem."""
        return msgspec.json.decode(self.body, type=kind)


async def call(
    page: ServiceRequest,
    key: str,
    *,
    method: str,
    path: str,
    query: Mapping[str, Any] | None = None,
    body: Any = None,
    repeat_key: str | None = None,
) -> Answer:
    """What a route answers to a holder of `key`, as if they had asked over the network.

    Args:
        page: The request of the page: the route is told its source and its id.
        key: That the route is asked with.
        method: Of the request.
        path: Below the root; not percent-encoded.
        query: Parameters; those that are None or empty are left out.
        body: Sent as JSON; none where it is None.
        repeat_key: The `Idempotency-Key`, for what must not be done twice.

    Raises:
        Refused: The answer is a problem.
    """
    content = b"" if body is None else msgspec.json.encode(body)
    scope = _scope(page, key, method=method, path=path, query=query or {}, content=content, repeat_key=repeat_key)
    # In a task of its own, whose log context is its own as well.
    status, answered = await asyncio.create_task(_run(page, scope, content))
    operator = str(scope["state"].get("operator", ""))
    if status >= 400:
        raise _refused(status, answered, page.request_id)
    return Answer(status, answered, operator)


async def _run(page: ServiceRequest, scope: HTTPScope, content: bytes) -> tuple[int, bytes]:
    sent, status, parts = False, 500, list[bytes]()

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # nobody goes away while the page waits
        sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message["body"])

    await page.app(cast("Scope", scope), cast("Receive", receive), cast("Send", send))
    return status, b"".join(parts)


def _scope(
    page: ServiceRequest,
    key: str,
    *,
    method: str,
    path: str,
    query: Mapping[str, Any],
    content: bytes,
    repeat_key: str | None,
) -> HTTPScope:
    outer = page.scope
    headers = [(name, value) for name, value in outer["headers"] if name in _HANDED_ON]
    headers += [(b"authorization", f"Bearer {key}".encode()), (b"x-request-id", page.request_id.encode())]
    if content:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if repeat_key:
        headers.append((IDEMPOTENCY_KEY.lower().encode(), repeat_key.encode()))
    given = {name: value for name, value in query.items() if value not in (None, "")}
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": outer.get("asgi", {"version": "3.0", "spec_version": "2.3"}),
        "http_version": outer["http_version"],
        "method": method,
        "scheme": outer["scheme"],
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": urlencode(given).encode(),
        "root_path": "",
        "headers": headers,
        "client": outer.get("client"),
        "server": outer.get("server"),
        "extensions": {},
        "state": {},
    }
    return cast("HTTPScope", scope)


def _refused(status: int, body: bytes, request_id: str) -> Refused:
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        return Refused(status, "the service behind did not say what went wrong", faults=[], request_id=request_id)
    return Refused(status, problem.detail, faults=problem.errors, request_id=request_id)

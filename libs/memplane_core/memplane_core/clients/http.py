"""HTTP to one of our services: pooled connections, a deadline, retries where they can do no harm, a breaker."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from io import BytesIO
from typing import Final

import aiohttp
import msgspec
import stamina
from opentelemetry.trace import SpanKind
from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import OpenedState
from yarl import URL

from memplane_core.observability.metrics import UPSTREAM_SECONDS
from memplane_core.observability.process import process_name
from memplane_core.observability.tracing import TRACEPARENT, span, traceparent

_NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_BROKEN: Final = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)
_LARGE: Final = 1024 * 1024
"""Bodies from here on are given to the socket in pieces."""
_SKIPPED_HEADERS: Final = ("Accept", "Accept-Encoding", "User-Agent")


class ServiceUnreachable(Exception):
    """No answer was had, and none is to be expected right now.

    Attributes:
        unsent: The service surely saw nothing of the request; otherwise it may have been carried out.
    """

    def __init__(self, service: str, reason: str, *, unsent: bool) -> None:
        super().__init__(f"{service} cannot be reached: {reason}")
        self.unsent = unsent


class ServiceTimeout(Exception):
    """The deadline passed; the request may have been carried out."""

    def __init__(self, service: str, timeout_s: float) -> None:
        super().__init__(f"{service} did not answer within {timeout_s:g} s")


class HttpAnswer(msgspec.Struct, frozen=True):
    """What a service answered, whatever its status; header names are looked up in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ServiceHttp:
    """Calls one service. Make it anywhere, call it in one event loop, and `close` it there: no call is made after that.

    Args:
        base_url: `http://host:port` of the service, without a path.
        service: Its name in errors and in the breaker.
        connect_timeout_s: For one attempt at a connection.
        attempts: Most tries of a call that may be repeated.
        failures_to_open: Consecutive calls without an answer after which the breaker refuses at once.
        open_s: How long it does, before it lets calls try again.
        name: What it is called in metrics and traces, where that is not its name in errors.
        traced: It is one of ours, and is told of the trace.
    """

    def __init__(
        self,
        base_url: str,
        *,
        service: str,
        connect_timeout_s: float = 2.0,
        attempts: int = 4,
        failures_to_open: int = 5,
        open_s: float = 2.0,
        name: str = "",
        traced: bool = True,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._service = service
        self._name = name or service
        self._traced = traced
        self._attempts = attempts
        self._open_s = open_s
        self._timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=connect_timeout_s)
        self._breakers = AsyncCircuitBreakerFactory(
            default_threshold=failures_to_open, default_ttl=open_s, exclude=[asyncio.CancelledError]
        )
        self._breaker: AbstractAsyncContextManager[object] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def retry_after_s(self) -> int:
        """Whole seconds after which a refused call is worth another try."""
        return max(1, round(self._open_s))

    async def close(self) -> None:
        """Give back the connections."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        attempts: int | None = None,
    ) -> HttpAnswer:
        """Send a request and read its whole answer, whatever the status.

        Args:
            method: HTTP method.
            path: With its query string, percent-encoded; sent as it is.
            timeout_s: Deadline of everything together, retries included.
            repeatable: Whether doing it twice does no harm. What surely was not sent is tried again in any case.
            headers: Of the request.
            body: Of the request, sent as it is.
            attempts: Most tries of this call, where not the usual number.

        Raises:
            ServiceUnreachable: No connection, a broken one, or the breaker is open.
            ServiceTimeout: The deadline passed.
        """
        if self._breaker is None:
            self._breaker = await self._breakers.get_breaker(self._service)
        began, outcome = time.perf_counter(), "error"
        try:
            with span(f"{method} {self._name}", kind=SpanKind.CLIENT):
                told = traceparent() if self._traced else ""
                sent = {**(headers or {}), TRACEPARENT: told} if told else headers
                async with self._breaker, asyncio.timeout(timeout_s):
                    answer = await self._attempt_all(
                        method,
                        path,
                        headers=sent,
                        body=body,
                        repeatable=repeatable,
                        attempts=attempts or self._attempts,
                    )
            outcome = f"{answer.status // 100}xx"
        except OpenedState as opened:
            # One exception object serves all refused calls: left alone it would collect their frames and bodies.
            opened.with_traceback(None)
            raise ServiceUnreachable(self._service, "it did not answer the last calls", unsent=True) from None
        except TimeoutError:
            outcome = "timeout"
            raise ServiceTimeout(self._service, timeout_s) from None
        else:
            return answer
        finally:
            UPSTREAM_SECONDS.labels(process_name(), self._name, outcome).observe(time.perf_counter() - began)

    async def _attempt_all(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        repeatable: bool,
        attempts: int,
    ) -> HttpAnswer:
        def worth_another(error: Exception) -> bool:
            return isinstance(error, ServiceUnreachable) and (error.unsent or repeatable)

        try:  # the common case pays nothing for the retries
            return await self._attempt(method, path, headers=headers, body=body)
        except ServiceUnreachable as error:
            if attempts < 2 or not worth_another(error):
                raise
            unsent = error.unsent
        async for attempt in stamina.retry_context(
            on=worth_another,
            attempts=attempts - 1,
            timeout=None,
            wait_initial=0.05,
            wait_max=0.5,
            wait_jitter=0.05,
        ):
            with attempt:
                try:
                    return await self._attempt(method, path, headers=headers, body=body)
                except ServiceUnreachable as error:
                    unsent = error.unsent = error.unsent and unsent  # any of them may have been carried out
                    raise
        raise AssertionError("a retry context ends by a return or an error")

    async def _attempt(
        self, method: str, path: str, *, headers: Mapping[str, str] | None, body: bytes | None
    ) -> HttpAnswer:
        if self._closed:  # a call that was under way tries again, over connections that nobody would give back
            raise ServiceUnreachable(self._service, "this process is stopping", unsent=False)
        if self._session is None:
            self._session = self._open()
        url = URL(self._base + path, encoded=True)
        data = BytesIO(body) if body is not None and len(body) > _LARGE else body
        try:
            async with self._session.request(
                method, url, headers=headers, data=data, allow_redirects=False
            ) as response:
                return HttpAnswer(response.status, response.headers, await response.read())
        except _BROKEN as error:
            raise self._unreachable(error, unsent=False) from error

    async def _send(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Names errors before aiohttp sees them, which would silently repeat a DELETE."""
        try:
            return await handler(request)
        except _NEVER_SENT as error:
            raise self._unreachable(error, unsent=True) from error
        except _BROKEN as error:
            raise self._unreachable(error, unsent=False) from error

    def _unreachable(self, error: Exception, *, unsent: bool) -> ServiceUnreachable:
        return ServiceUnreachable(self._service, str(error) or type(error).__name__, unsent=unsent)

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # Shorter than our servers keep idle connections, so that none is used as it is being closed.
            connector=aiohttp.TCPConnector(limit=512, keepalive_timeout=15, ttl_dns_cache=10),
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED_HEADERS,
            auto_decompress=False,
            middlewares=(self._send,),
        )

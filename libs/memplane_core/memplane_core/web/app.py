"""The one way a service of ours becomes an ASGI application."""

import gc
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, cast

import structlog
from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.openapi import OpenAPIConfig
from litestar.types import (
    BeforeMessageSendHookHandler,
    ControllerRouterHandler,
    HTTPResponseStartEvent,
    HTTPScope,
    LifeSpanReceive,
    LifeSpanScope,
    LifeSpanSend,
    Message,
    Middleware,
    Receive,
    Scope,
    Send,
)
from opentelemetry.trace import Span

from memplane_core.domain.errors import MemplaneError
from memplane_core.observability.certificates import watch_certificates
from memplane_core.observability.health import Check, HealthChecks
from memplane_core.observability.logs import configure_logs, get_logger
from memplane_core.observability.metrics import REQUEST_SECONDS, REQUESTS, serve_metrics
from memplane_core.observability.tracing import (
    TRACEPARENT,
    as_trace_id,
    configure_traces,
    current_trace_id,
    entry_span,
    name_request,
)
from memplane_core.settings import ServerSettings, Settings
from memplane_core.web.allow import AllowedMethods
from memplane_core.web.draining import Draining
from memplane_core.web.health import health_routes
from memplane_core.web.pace import ClientTooSlow, Pace
from memplane_core.web.problems import EXCEPTION_HANDLERS, TRACE_ID, problem_of, render, trace_of
from memplane_core.web.request import STRICT_JSON, ServiceRequest
from memplane_core.web.shape import METHODS, fault_of

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Of routes that do not set their own."""

_log = get_logger(__name__)

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")


class ServiceApp(Litestar):
    """A Litestar application that gives every request an id, a log context and a place in the metrics.

    This happens outside of Litestar's own middleware, which runs only once a route has been found: an unknown path
    gets its request id too. So does what is refused for its shape, and who sends or reads too slowly is given up.
    """

    service: str = "unknown"
    pace: Pace
    draining: Draining

    async def __call__(
        self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend
    ) -> None:
        """Run a request, or the lifespan."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        headers = Headers.from_scope(scope)
        given = headers.get("x-request-id", "")
        given = given if _SANE_ID.fullmatch(given) else ""
        parent = headers.get(TRACEPARENT)
        with entry_span("request", parent=parent, trace_id=as_trace_id(given)) as span:
            trace_id = current_trace_id()
            request_id = given or trace_id
            scope.setdefault("state", {})["request_id"] = request_id
            scope["state"][TRACE_ID] = trace_id
            structlog.contextvars.clear_contextvars()
            structlog.contextvars.bind_contextvars(service=self.service, request_id=request_id, trace_id=trace_id)
            await self._traced(scope, cast("Receive", receive), send=cast("Send", send), span=span)

    async def _traced(self, scope: HTTPScope, receive: Receive, *, send: Send, span: Span) -> None:
        began = time.perf_counter()
        status = 500
        paced = self.pace.sending(send)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableScopeHeaders.from_message(message)
                headers["X-Request-Id"] = str(scope["state"]["request_id"])
                headers["Server"] = "memplane"
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
                if self.draining.begun:
                    headers["Connection"] = "close"  # the next request finds another process
            await paced(message)  # pyright: ignore[reportArgumentType]

        broken = True
        try:
            await self._answer(scope, self.pace.receiving(receive), cast("Send", send_with_headers))
            broken = False
        except Exception as error:  # noqa: BLE001 - the server would log it with all that its message quotes
            _log_broken(scope, error)
        finally:
            route = scope.get("path_template", "") or "unmatched"
            method = scope["method"] if scope["method"] in METHODS else "other"
            REQUESTS.labels(self.service, method, route, str(status)).inc()
            REQUEST_SECONDS.labels(self.service, method, route).observe(time.perf_counter() - began)
            name_request(span, method, route=route, status=status)
        if broken:
            raise AnswerBrokenOff

    async def _answer(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        fault = fault_of(scope)
        if fault is None:
            await super().__call__(scope, receive, send)
        else:
            await self._refuse(scope, send, fault)

    async def _refuse(self, scope: HTTPScope, send: Send, error: MemplaneError) -> None:
        """Answer without asking for a route."""
        answer = render(problem_of(error, request_id=str(scope["state"]["request_id"]), trace_id=trace_of(scope)))
        body = answer.content
        headers = {**answer.headers, "content-type": answer.media_type or "", "content-length": str(len(body))}
        start: HTTPResponseStartEvent = {
            "type": "http.response.start",
            "status": error.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        scope["litestar_app"] = self
        for hook in self.before_send:
            await hook(start, scope)
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})


class AnswerBrokenOff(Exception):
    """Tells the server to close the connection: the answer that has begun cannot be ended."""


def _log_broken(scope: HTTPScope, error: Exception) -> None:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ClientTooSlow):
        cause = cause.__cause__
    route = scope.get("path_template", "")
    if cause is None:
        _log.error("answer broken off", route=route, exc_info=error)
    else:
        _log.info("client given up", route=route, reason=str(cause))


@asynccontextmanager
async def _frozen(_app: Litestar) -> AsyncGenerator[None]:
    """Keep what start-up made out of the collector's sight: to look through it stops all requests for 0.1 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def build_app(
    routes: Sequence[ControllerRouterHandler],
    *,
    service: str,
    settings: Settings,
    lifespan: Sequence[Lifespan],
    checks: Mapping[str, Check],
    helpful: Mapping[str, Check] | None = None,
    middleware: Sequence[Middleware] = (),
    dependencies: Mapping[str, Any] | None = None,
    openapi: OpenAPIConfig | None = None,
    before_send: Sequence[BeforeMessageSendHookHandler] = (),
    cors: CORSConfig | None = None,
    strict_json: bool = False,
    door: bool = False,
) -> ServiceApp:
    """An application with our request class, problems, health routes, logs and metrics.

    Args:
        routes: Handlers, controllers or routers; bodies up to `MAX_BODY_BYTES` unless one of them allows more.
        service: Name in logs and metrics.
        settings: Of the process.
        lifespan: Context managers entered in order at start and left in reverse at stop.
        checks: What the service can do nothing without, by part; asked by `/readyz`, and every few seconds for metrics.
        helpful: What it can do without; the same, but it stays ready.
        middleware: Runs for routes that were found.
        dependencies: Litestar dependencies by name.
        openapi: Only a public door documents itself.
        before_send: Sees every message before it is sent, errors and unknown routes included.
        cors: Which pages of other origins may call; None: none.
        strict_json: Whether bodies must say that they are JSON, and keys that are given twice are refused. For doors:
            services behind one are given what it has read.
        door: Whether it is called from outside, by those whose word on what to trace is not taken.
    """
    configure_logs(settings.log, service=service)
    configure_traces(settings.trace, service=service, door=door)
    watch_certificates(settings)
    serve_metrics(settings.server.host, settings.server.metrics_port)
    health = HealthChecks(service, needed=checks, helpful=helpful)

    @asynccontextmanager
    async def watched(_: Litestar) -> AsyncGenerator[None]:
        async with health.watched():
            yield

    draining = Draining()
    app = ServiceApp(
        [*routes, *health_routes(health, draining)],
        lifespan=[*lifespan, watched, draining.watched, _frozen],
        middleware=list(middleware),
        dependencies=dict(dependencies or {}),
        exception_handlers={**EXCEPTION_HANDLERS},
        request_class=ServiceRequest,
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=openapi,
        before_send=[*before_send, AllowedMethods()],
        cors_config=cors,
        opt={STRICT_JSON: strict_json},
        logging_config=None,
    )
    app.service = service
    app.pace = _pace(settings.server)
    app.draining = draining
    return app


def _pace(server: ServerSettings) -> Pace:
    return Pace(patience_s=server.patience_s, min_bytes_s=server.min_bytes_s)

"""The one way a service of ours becomes an ASGI application."""

import gc
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import structlog
import uuid_utils
from litestar import Litestar
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.openapi import OpenAPIConfig
from litestar.types import (
    BeforeMessageSendHookHandler,
    ControllerRouterHandler,
    LifeSpanReceive,
    LifeSpanScope,
    LifeSpanSend,
    Message,
    Middleware,
    Receive,
    Scope,
    Send,
)

from memplane_core.observability.logs import configure_logs
from memplane_core.observability.metrics import REQUEST_SECONDS, REQUESTS, serve_metrics
from memplane_core.settings import Settings
from memplane_core.web.health import Check, health_routes
from memplane_core.web.problems import EXCEPTION_HANDLERS
from memplane_core.web.request import ServiceRequest

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Of routes that do not set their own."""

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")


class ServiceApp(Litestar):
    """A Litestar application that gives every request an id, a log context and a place in the metrics.

    This happens outside of Litestar's own middleware, which runs only once a route has been found: an unknown path
    gets its request id too.
    """

    service: str = "unknown"

    async def __call__(
        self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend
    ) -> None:
        """Run a request, or the lifespan."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        given = Headers.from_scope(scope).get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid_utils.uuid7().hex
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(service=self.service, request_id=request_id)
        began = time.perf_counter()
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableScopeHeaders.from_message(message)
                headers["X-Request-Id"] = str(scope["state"]["request_id"])
                headers.setdefault("Cache-Control", "no-store")
            await send(message)  # pyright: ignore[reportArgumentType]

        try:
            await super().__call__(scope, receive, send_with_headers)  # pyright: ignore[reportArgumentType]
        finally:
            route = scope.get("path_template", "") or "unmatched"
            REQUESTS.labels(self.service, scope["method"], route, str(status)).inc()
            REQUEST_SECONDS.labels(self.service, scope["method"], route).observe(time.perf_counter() - began)


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
    middleware: Sequence[Middleware] = (),
    dependencies: Mapping[str, Any] | None = None,
    openapi: OpenAPIConfig | None = None,
    before_send: Sequence[BeforeMessageSendHookHandler] = (),
) -> ServiceApp:
    """An application with our request class, problems, health routes, logs and metrics.

    Args:
        routes: Handlers, controllers or routers; bodies up to `MAX_BODY_BYTES` unless one of them allows more.
        service: Name in logs and metrics.
        settings: Of the process.
        lifespan: Context managers entered in order at start and left in reverse at stop.
        checks: What `/readyz` asks, by part.
        middleware: Runs for routes that were found.
        dependencies: Litestar dependencies by name.
        openapi: Only a public door documents itself.
        before_send: Sees every message before it is sent, errors and unknown routes included.
    """
    configure_logs(settings.log, service=service)
    serve_metrics(settings.server.host, settings.server.metrics_port)
    app = ServiceApp(
        [*routes, *health_routes(checks)],
        lifespan=[*lifespan, _frozen],
        middleware=list(middleware),
        dependencies=dict(dependencies or {}),
        exception_handlers={**EXCEPTION_HANDLERS},
        request_class=ServiceRequest,
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=openapi,
        before_send=list(before_send),
        logging_config=None,
    )
    app.service = service
    return app

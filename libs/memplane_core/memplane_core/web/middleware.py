"""Who is asking."""

from typing import Final

import structlog
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from memplane_core.security.internal import InternalTokens, bearer

PUBLIC: Final = "public"
"""Handler option: nobody is asked for a key here."""


class InternalAuth(ASGIMiddleware):
    """Lets in only callers with a token of ours, and remembers whom they speak for."""

    scopes = (ScopeType.HTTP,)
    exclude_opt_key = PUBLIC

    def __init__(self, tokens: InternalTokens) -> None:
        self._tokens = tokens

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Run the request as the token's principal."""
        principal = self._tokens.verify(bearer(Headers.from_scope(scope).get("authorization")))
        scope["state"]["principal"] = principal
        scope["state"]["request_id"] = principal.request_id
        structlog.contextvars.bind_contextvars(tenant=str(principal.tenant), request_id=principal.request_id)
        await next_app(scope, receive, send)

"""The request as our handlers see it."""

import asyncio
from typing import Any, Final, cast

from litestar import Request
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from memplane_core.domain.errors import Forbidden, MalformedRequest, PayloadTooLarge, Unauthorized
from memplane_core.domain.tenancy import Principal, Scope
from memplane_core.web.bodies import decode_json, refuse_repeated_keys
from memplane_core.web.shape import check_json

_LONG_BYTES: Final = 256 * 1024
"""From here on to look for repeated keys takes so long that other requests go on meanwhile."""

STRICT_JSON: Final = "strict_json"
"""Handler option: bodies must say that they are JSON, and no key of an object may be given twice."""


class ServiceRequest(Request[None, None, Any]):
    """Reads a JSON body straight into the handler's type: one strict pass, no coercion, errors that name the field."""

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            PayloadTooLarge: It is longer than the route takes. It is not read then.
            MalformedRequest: The client went away before it was sent.
        """
        try:
            return await super().body()
        except RequestEntityTooLarge as error:
            most = self.route_handler.resolve_request_max_body_size()
            raise PayloadTooLarge(f"the body is longer than the {most:,} bytes that this route takes") from error
        except InternalServerException as error:  # what Litestar makes of a disconnect, as if it were our fault
            raise MalformedRequest("the request ended before its body did") from error

    async def json(self) -> Any:
        """The body as the type that the handler's `data` asks for."""
        field = self.route_handler.parsed_data_field
        strict = self.route_handler.opt.get(STRICT_JSON, False)
        body = await self.body()
        if strict and body:
            check_json(self.headers.get("content-type"))
        decoded = decode_json(body, cast("type[Any]", field.annotation if field else Any))
        if strict and len(body) > _LONG_BYTES:
            await asyncio.to_thread(refuse_repeated_keys, body)
        elif strict:
            refuse_repeated_keys(body)
        return decoded

    @property
    def principal(self) -> Principal:
        """Who is calling. Raises Unauthorized on a route that no middleware has authenticated."""
        found = self.scope["state"].get("principal")
        if not isinstance(found, Principal):
            raise Unauthorized("this route needs a key")
        return found

    @property
    def request_id(self) -> str:
        """The id that ties this request's log lines, problems and history together."""
        return str(self.scope["state"].get("request_id", ""))

    def require(self, scope: Scope, *, bound: bool = False) -> Principal:
        """The caller, who must hold `scope`.

        Args:
            scope: What the route needs.
            bound: The route keeps bound keys to their own memories (`domain.binding`); all others are closed to them.

        Raises:
            Forbidden: The scope is missing, which is named, or the route is closed to bound keys.
        """
        principal = self.principal
        if scope not in principal.scopes:
            raise Forbidden(f"this route needs a key with the scope {scope!r}")
        return principal if bound else self.unbound()

    def unbound(self) -> Principal:
        """The caller, on a route that is about more than single memories. Raises Forbidden for a bound key."""
        principal = self.principal
        if principal.bind:
            raise Forbidden("this route is closed to keys that are bound to a user or an agent")
        return principal

"""The request as our handlers see it."""

from typing import Any, cast

from litestar import Request
from litestar.exceptions import InternalServerException

from memplane_core.domain.errors import Forbidden, MalformedRequest, Unauthorized
from memplane_core.domain.tenancy import Principal, Scope
from memplane_core.web.bodies import decode_json


class ServiceRequest(Request[None, None, Any]):
    """Reads a JSON body straight into the handler's type: one strict pass, no coercion, errors that name the field."""

    async def body(self) -> bytes:
        """The whole body. Raises MalformedRequest where the client went away before it was sent."""
        try:
            return await super().body()
        except InternalServerException as error:  # what Litestar makes of a disconnect, as if it were our fault
            raise MalformedRequest("the request ended before its body did") from error

    async def json(self) -> Any:
        """The body as the type that the handler's `data` asks for."""
        field = self.route_handler.parsed_data_field
        return decode_json(await self.body(), cast("type[Any]", field.annotation if field else Any))

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

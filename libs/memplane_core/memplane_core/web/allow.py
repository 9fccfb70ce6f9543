"""What `OPTIONS` says of a path."""

from litestar.datastructures import MutableScopeHeaders
from litestar.routes import HTTPRoute
from litestar.types import Message, Scope


class AllowedMethods:
    """Has the answers to `OPTIONS` list every method of their path.

    Litestar's own list the methods of the handler that was registered first, and no other's of the same path.
    """

    def __init__(self) -> None:
        self._by_path: dict[str, str] = {}

    async def __call__(self, message: Message, scope: Scope) -> None:
        """See one message before it is sent."""
        if message["type"] != "http.response.start" or scope.get("method") != "OPTIONS":
            return
        headers = MutableScopeHeaders.from_message(message)
        if "allow" in headers and message["status"] < 400:
            if not self._by_path:
                routes = [route for route in scope["litestar_app"].routes if isinstance(route, HTTPRoute)]
                self._by_path = {route.path_format: ", ".join(sorted(route.methods)) for route in routes}
            headers["Allow"] = self._by_path[scope["path_template"]]

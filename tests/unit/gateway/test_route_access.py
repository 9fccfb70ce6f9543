"""The table of scopes and rate classes, held against the routes that there are."""

import re

from litestar.handlers import HTTPRouteHandler

from memplane_core.web.middleware import PUBLIC
from memplane_gateway.app import ROUTES
from memplane_gateway.route_access import access_of, named_routes


def keyed_routes() -> set[tuple[str, str]]:
    """Method and path template of each route that an API key opens."""
    found: set[tuple[str, str]] = set()
    for handler in ROUTES:
        assert isinstance(handler, HTTPRouteHandler)
        paths = {re.sub(r":\w+}", "}", path) for path in handler.paths}
        if not handler.opt.get(PUBLIC):
            found |= {(str(method), path) for method in handler.http_methods for path in paths}
    return {(method, path) for method, path in found if not path.startswith("/admin/")}


class TestTheTable:
    def test_it_names_every_route_that_a_key_opens_and_no_other(self) -> None:
        assert named_routes() == keyed_routes()

    def test_what_writes_is_counted_as_a_write(self) -> None:
        for method, path in named_routes():
            access = access_of(method, path)
            assert access is not None
            if access.scope == "memories:write":
                assert (access.rate, access.metered) == ("write", "write"), path
            if access.scope in ("tenant:admin", "memories:admin"):
                assert (access.rate, access.metered) == ("admin", None), path

    def test_an_unknown_route_asks_for_nothing(self) -> None:
        assert access_of("GET", "/v1/nothing") is None

"""Requests to a service in the name of somebody, as the gateway makes them."""

from collections.abc import Generator

import httpx2

from memplane_core.domain.tenancy import Principal
from memplane_core.security.internal import InternalTokens


class Signed(httpx2.Auth):
    """Gives each request that has no token a new one: they live for a minute, which a test may outlast.

    Args:
        secret: That the service trusts.
        principal: For whom requests are made.
    """

    def __init__(self, secret: str, principal: Principal) -> None:
        self._tokens = InternalTokens(secret)
        self._principal = principal

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
        """Sign it."""
        if "Authorization" not in request.headers:
            request.headers["Authorization"] = f"Bearer {self._tokens.sign(self._principal)}"
        yield request

"""What the pages need of the process that they are served by."""

from collections.abc import Sequence

from memplane_core.contracts.limits import Rate
from memplane_core.web.request import ServiceRequest
from memplane_gateway.console.sessions import Sessions
from memplane_gateway.rates import RateLimiter, Window
from memplane_gateway.sources import Network, client_address


class Desk:
    """Sessions, and how often somebody may try to begin one.

    Args:
        sessions: Who is signed in.
        rates: Counts.
        proxies: Networks whose `X-Forwarded-For` is believed.
    """

    def __init__(self, sessions: Sessions, rates: RateLimiter, *, proxies: Sequence[Network]) -> None:
        self.sessions = sessions
        self._rates = rates
        self._proxies = tuple(proxies)

    async def admits(self, request: ServiceRequest, *, each: Rate, all_: Rate) -> bool:
        """Whether another try from there is within both rates; counts it where it is."""
        client = request.scope.get("client")
        forwarded = request.headers.getall("x-forwarded-for", [])
        source = client_address(client and client[0], forwarded, proxies=self._proxies)
        slot = "mp:console:{tries}"
        windows = [
            Window("console-address", f"{slot}:{source}:{each.seconds}", each),
            Window("console", f"{slot}:{all_.seconds}", all_),
        ]
        return (await self._rates.admit(windows)).admitted

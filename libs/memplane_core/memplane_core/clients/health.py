"""How a service is, by its own account, and whether a Valkey answers."""

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
from redis.asyncio import Redis

from memplane_core.clients.http import ServiceHttp, ServiceTimeout, ServiceUnreachable
from memplane_core.contracts.system import Health

_TIMEOUT_S = 2.5


class ServiceHealth:
    """Asks one service's `/readyz`.

    Args:
        url: Of the service, without a path.
        service: Its name.
    """

    def __init__(self, url: str, *, service: str) -> None:
        # A breaker would go on saying for seconds that a service is away that has just come back.
        self._http = ServiceHttp(url, service=service, attempts=1, failures_to_open=1_000_000)

    async def ask(self) -> Health | None:
        """What it says; None where it does not answer."""
        try:
            answer = await self._http.call("GET", "/readyz", timeout_s=_TIMEOUT_S, repeatable=True)
            return msgspec.json.decode(answer.body, type=Health)
        except (ServiceUnreachable, ServiceTimeout, msgspec.MsgspecError):
            return None

    async def close(self) -> None:
        """Give back the connections."""
        await self._http.close()


def redis_check(client: Redis) -> Callable[[], Awaitable[object]]:
    """A check that the server of `client` answers."""

    async def check() -> None:
        await cast("Awaitable[object]", client.ping())  # pyright: ignore[reportUnknownMemberType]

    return check

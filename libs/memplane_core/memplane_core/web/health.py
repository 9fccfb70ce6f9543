"""`/healthz` says that the process runs; `/readyz` that it can do its work now."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from memplane_core.observability.logs import get_logger
from memplane_core.web.middleware import PUBLIC

_log = get_logger(__name__)

Check = Callable[[], Awaitable[None]]


class Health(msgspec.Struct):
    """`status` is `ok`, or `unavailable`; `parts` tells of each whether it is `ok` or `unavailable`."""

    status: str
    parts: dict[str, str]


async def run_checks(checks: Mapping[str, Check], *, timeout_s: float = 2.0) -> Health:
    """Run all checks side by side; one that raises or takes longer than `timeout_s` has failed.

    Why it failed is logged: who may ask is everybody, and an error can name hosts and users.
    """

    async def one(part: str, check: Check) -> str:
        try:
            async with asyncio.timeout(timeout_s):
                await check()
        except Exception as error:  # noqa: BLE001 - whatever a dependency raises, it is not ready
            _log.warning("not ready", part=part, error=f"{type(error).__name__}: {error}"[:200])
            return "unavailable"
        return "ok"

    results = await asyncio.gather(*(one(part, check) for part, check in checks.items()))
    parts = dict(zip(checks, results, strict=True))
    return Health("ok" if all(result == "ok" for result in results) else "unavailable", parts)


def health_routes(checks: Mapping[str, Check]) -> list[HTTPRouteHandler]:
    """Handlers for both; `checks` maps a part's name to what raises where the part is not there."""

    @get("/healthz", opt={PUBLIC: True}, include_in_schema=False)
    async def healthz() -> Health:
        return Health("ok", {})

    @get("/readyz", opt={PUBLIC: True}, include_in_schema=False)
    async def readyz() -> Response[Health]:
        health = await run_checks(checks)
        return Response(health, status_code=200 if health.status == "ok" else 503)

    return [healthz, readyz]

"""`/healthz` says that the process runs; `/readyz` that it can do its work now."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from memplane_core.web.middleware import PUBLIC

Check = Callable[[], Awaitable[None]]


class Health(msgspec.Struct):
    """`status` is `ok`, or `unavailable` with the parts that failed and why."""

    status: str
    parts: dict[str, str]


async def run_checks(checks: Mapping[str, Check], *, timeout_s: float = 2.0) -> Health:
    """Run all checks side by side; one that raises or takes longer than `timeout_s` has failed."""

    async def one(check: Check) -> str:
        try:
            async with asyncio.timeout(timeout_s):
                await check()
        except Exception as error:  # noqa: BLE001 - whatever a dependency raises, it is not ready
            return f"{type(error).__name__}: {error}"[:200] if str(error) else type(error).__name__
        return "ok"

    results = await asyncio.gather(*(one(check) for check in checks.values()))
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

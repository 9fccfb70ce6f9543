"""`/healthz` says that the process runs; `/readyz` that it can do its work now."""

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from memplane_core.contracts.system import Health
from memplane_core.observability.health import HealthChecks
from memplane_core.web.middleware import PUBLIC


def health_routes(checks: HealthChecks) -> list[HTTPRouteHandler]:
    """Handlers for both."""

    @get("/healthz", opt={PUBLIC: True}, include_in_schema=False)
    async def healthz() -> Health:
        return Health("ok", {})

    @get("/readyz", opt={PUBLIC: True}, include_in_schema=False)
    async def readyz() -> Response[Health]:
        health = await checks.look()
        return Response(health, status_code=503 if health.status == "unavailable" else 200)

    return [healthz, readyz]

"""`/healthz` says that the process runs; `/readyz` that it can do its work now."""

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from memplane_core.contracts.system import Health
from memplane_core.observability.health import HealthChecks
from memplane_core.web.draining import Draining
from memplane_core.web.middleware import PUBLIC


def health_routes(checks: HealthChecks, draining: Draining) -> list[HTTPRouteHandler]:
    """Handlers for both; a process that drains is not ready, and its parts are not asked."""

    @get("/healthz", opt={PUBLIC: True}, include_in_schema=False)
    async def healthz() -> Health:
        return Health("ok", {})

    @get("/readyz", opt={PUBLIC: True}, include_in_schema=False)
    async def readyz() -> Response[Health]:
        health = Health("draining", {}) if draining.begun else await checks.look()
        return Response(health, status_code=503 if health.status in {"unavailable", "draining"} else 200)

    return [healthz, readyz]

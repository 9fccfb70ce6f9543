"""How the installation is, for operators: each part and who reaches it, the index, queues, jobs and generations."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.system import SystemView
from memplane_gateway.console.tenants import operators_only
from memplane_gateway.console.visits import Visit


@get("/system")
async def system_page(visit: NamedDependency[Visit]) -> Response[bytes]:
    """All that the gateway can tell, anew every few seconds."""
    operators_only(visit)
    system = (await visit.ask("/admin/v1/system")).read(SystemView)
    return await visit.page("system.html", title="System", system=system)


SYSTEM_PAGES: Final[Sequence[ControllerRouterHandler]] = (system_page,)

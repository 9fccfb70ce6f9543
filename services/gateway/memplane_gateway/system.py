"""Routes about the service itself."""

from collections.abc import Sequence
from typing import Final

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.system import SystemView
from memplane_core.web.middleware import PUBLIC
from memplane_gateway.documents import answer, problems
from memplane_gateway.system_desk import VERSION, SystemDesk

_TAGS: Final = ["System"]


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here."""

    name: str
    version: str


@get(
    "/v1/version",
    operation_id="getVersion",
    summary="Version of the service",
    tags=_TAGS,
    opt={PUBLIC: True},
    responses={200: answer(Version, "Name and version.")},
)
async def get_version() -> Version:
    """What runs here; needs no key."""
    return Version(name="memplane", version=VERSION)


@get(
    "/admin/v1/system",
    operation_id="getSystem",
    summary="How the installation is",
    tags=["Administration"],
    responses={200: answer(SystemView, "Also while parts are away."), **problems(401)},
)
async def get_system(system_desk: NamedDependency[SystemDesk]) -> SystemView:
    """Every part and who can reach it, how far the index is behind, queues, jobs and generations, keys that end soon.

    Parts are asked as the answer is made; what workers alone can see is what they told within the last half minute.
    """
    return await system_desk.look()


SYSTEM_ROUTES: Final[Sequence[ControllerRouterHandler]] = (get_version, get_system)

"""Routes about the service itself."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

import msgspec
from litestar import get
from litestar.types import ControllerRouterHandler

from memplane_core.web.middleware import PUBLIC
from memplane_gateway.documents import answer

VERSION: Final = version("memplane")

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


SYSTEM_ROUTES: Final[Sequence[ControllerRouterHandler]] = (get_version,)

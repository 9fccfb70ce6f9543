"""Routes about the service itself and about who is asking."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Final
from uuid import UUID

import msgspec
from litestar import get
from litestar.types import ControllerRouterHandler

from memplane_core.domain.tenancy import Scope
from memplane_core.web.middleware import PUBLIC
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems

VERSION: Final = version("memplane")

_TAGS: Final = ["System"]


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here."""

    name: str
    version: str


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whose key it is and what it may do."""

    tenant_id: UUID
    key_id: str
    scopes: list[Scope]


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
    "/v1/whoami",
    operation_id="whoAmI",
    summary="Whose key this is",
    tags=_TAGS,
    responses={200: answer(Caller, "The tenant, the key's public id and its scopes."), **problems(401, 503)},
)
async def whoami(request: ServiceRequest) -> Caller:
    """Tells the key it is asked with."""
    principal = request.principal
    return Caller(tenant_id=principal.tenant, key_id=principal.key_id, scopes=sorted(principal.scopes))


SYSTEM_ROUTES: Final[Sequence[ControllerRouterHandler]] = (get_version, whoami)

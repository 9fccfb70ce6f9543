"""Tenants, for operators."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.admin import TenantPage, TenantView
from memplane_core.domain.errors import NotFound
from memplane_gateway.console.visits import Visit

_PAGE: Final = 50


@get("/tenants")
async def tenants_page(visit: NamedDependency[Visit], cursor: FromQuery[str | None] = None) -> Response[bytes]:
    """All tenants, page by page."""
    operators_only(visit)
    page = (await visit.ask("/admin/v1/tenants", query={"limit": _PAGE, "cursor": cursor})).read(TenantPage)
    return await visit.page("tenants.html", title="Tenants", tenants=page)


@post("/tenants", status_code=200)
async def make_tenant(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Make a tenant and go there."""
    operators_only(visit)
    form = await visit.form()
    body = {"name": form.text("name") or ""}
    answer = await visit.send("POST", "/admin/v1/tenants", body=body, repeat_key=form.text("once"))
    return visit.go(f"/t/{answer.read(TenantView).id}/keys")


def operators_only(visit: Visit) -> None:
    """Raise NotFound for a tenant's key."""
    if not visit.session.operator:
        raise NotFound("there is no such page")


TENANT_PAGES: Final[Sequence[ControllerRouterHandler]] = (tenants_page, make_tenant)

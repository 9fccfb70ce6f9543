"""Who did what: to one tenant, or for operators to all."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.audit import AuditPage
from memplane_gateway.console.tenants import operators_only
from memplane_gateway.console.visits import Visit

_PAGE: Final = 50
_ASKED: Final = ("actor", "action", "from", "to", "cursor")


@get("/audit")
async def audit_page(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Of all tenants, and of none."""
    operators_only(visit)
    return await _show(visit, None, path="/admin/v1/audit")


@get("/t/{tenant:uuid}/audit")
async def tenant_audit_page(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """Of one tenant."""
    visit.base(tenant)
    return await _show(visit, tenant, path="/admin/v1/audit" if visit.session.operator else "/v1/audit")


async def _show(visit: Visit, tenant: UUID | None, *, path: str) -> Response[bytes]:
    given = {name: visit.request.query_params.get(name, "").strip() for name in _ASKED}
    for name, clock in (("from", "T00:00:00Z"), ("to", "T23:59:59.999Z")):
        given[name] += clock if len(given[name]) == len("2026-01-31") else ""
    query = {**given, "limit": _PAGE}
    if tenant is not None and visit.session.operator:
        query["tenant_id"] = str(tenant)
    page = (await visit.ask(path, query=query)).read(AuditPage)
    return await visit.page("audit.html", title="Audit", tenant=tenant, entries=page, given=given)


AUDIT_PAGES: Final[Sequence[ControllerRouterHandler]] = (audit_page, tenant_audit_page)

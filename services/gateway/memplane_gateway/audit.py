"""Routes that tell what was done by whom: to the operator of all tenants, to a tenant of itself."""

import base64
import binascii
import struct
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.audit import AuditEntry, AuditPage
from memplane_core.domain.errors import invalid
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import audit
from memplane_core.storage.audit import AuditPlace, AuditQuery
from memplane_core.storage.session import Database
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import NDJSON, answer, problems
from memplane_gateway.queries import refuse_unknown, unknown_cursor
from memplane_gateway.tenants import PageCursor, PageLimit

_PAGE: Final = "The newest first; `next_cursor` is null on the last page."
_EXPORT_PAGE: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE: Final = struct.Struct(">q16s")

# Read here and not by the framework, which takes `null` for nothing and would tell of all tenants.
TenantQuery = Annotated[
    str | None, QueryParameter(description="Only what was done to this tenant.", schema_extra={"format": "uuid"})
]
ActorQuery = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=64, description="Only what this key did: its id, or `admin` or `ops`."),
]
ActionQuery = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=64, description="Only this operation, named as in this document, like `createKey`."
    ),
]
# Read here and not by the framework, whose errors would name our variables.
Since = Annotated[
    str | None,
    QueryParameter(name="from", description="Not before this moment.", schema_extra={"format": "date-time"}),
]
Until = Annotated[
    str | None,
    QueryParameter(name="to", description="Before this moment.", schema_extra={"format": "date-time"}),
]


@get(
    "/admin/v1/audit",
    operation_id="listAudit",
    summary="Who did what",
    tags=["Administration"],
    responses={200: answer(AuditPage, _PAGE), **problems(401, 422, 503)},
)
async def list_audit(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    tenant_id: TenantQuery = None,
    actor: ActorQuery = None,
    action: ActionQuery = None,
    since: Since = None,
    until: Until = None,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> AuditPage:
    """Page through what was done on the admin routes, what tenants did to themselves, and what was refused."""
    refuse_unknown(request, ("tenant_id", "actor", "action", "from", "to", "limit", "cursor"))
    query = _query(actor, action, since=since, until=until)
    before = _before(cursor)
    async with database.system() as connection:
        found = await audit.audit_of_all(
            connection, tenant=_tenant(tenant_id), query=query, before=before, limit=limit + 1
        )
    return _page(found, limit=limit)


@get(
    "/admin/v1/audit/export",
    operation_id="exportAudit",
    summary="Export who did what",
    tags=["Administration"],
    responses={
        200: answer(AuditEntry, "One entry a line, the newest first.", media_type=NDJSON),
        **problems(401, 422, 503),
    },
)
async def export_audit(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    tenant_id: TenantQuery = None,
    actor: ActorQuery = None,
    action: ActionQuery = None,
    since: Since = None,
    until: Until = None,
) -> Stream:
    """All entries that match, streamed. One that breaks off in the middle is not whole: ask again."""
    refuse_unknown(request, ("tenant_id", "actor", "action", "from", "to"))
    query = _query(actor, action, since=since, until=until)
    tenant = _tenant(tenant_id)

    async def page_after(place: AuditPlace | None) -> Sequence[AuditEntry]:
        async with database.system() as connection:
            return await audit.audit_of_all(connection, tenant=tenant, query=query, before=place, limit=_EXPORT_PAGE)

    first = await page_after(None)  # before anything is sent, so that an error can still be told

    async def lines() -> AsyncGenerator[bytes]:
        found = first
        while found:
            yield msgspec.json.Encoder().encode_lines(found)
            found = await page_after(AuditPlace(found[-1].at, found[-1].id)) if len(found) == _EXPORT_PAGE else ()

    return Stream(lines(), media_type=NDJSON)


@get(
    "/v1/audit",
    operation_id="listOwnAudit",
    summary="Who did what in your tenant",
    tags=["Tenant"],
    responses={200: answer(AuditPage, _PAGE), **problems(401, 403, 422, 503)},
)
async def list_own_audit(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    actor: ActorQuery = None,
    action: ActionQuery = None,
    since: Since = None,
    until: Until = None,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> AuditPage:
    """Page through what was done to your tenant, by its own keys and by whoever operates the installation.

    Needs the scope `tenant:admin`.
    """
    principal = request.require("tenant:admin")
    refuse_unknown(request, ("actor", "action", "from", "to", "limit", "cursor"))
    query = _query(actor, action, since=since, until=until)
    before = _before(cursor)
    async with database.tenant(principal.tenant) as connection:
        found = await audit.audit_of(principal.tenant, connection, query=query, before=before, limit=limit + 1)
    return _page(found, limit=limit)


def _tenant(given: str | None) -> TenantId | None:
    try:
        return None if given is None else TenantId(msgspec.convert(given, UUID))
    except msgspec.ValidationError:
        raise invalid("tenant_id", "must be the id of a tenant") from None


def _query(actor: str | None, action: str | None, *, since: str | None, until: str | None) -> AuditQuery:
    for name, text in (("actor", actor), ("action", action)):
        if text is not None and "\0" in text:
            raise invalid(name, "must not hold NUL")
    return AuditQuery(actor=actor, action=action, since=_moment("from", since), until=_moment("to", until))


def _moment(name: str, given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        moment = msgspec.convert(given, datetime)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        raise invalid(name, "must be a moment, like 2026-01-31T12:00:00Z") from None


def _page(found: Sequence[AuditEntry], *, limit: int) -> AuditPage:
    results = list(found[:limit])
    return AuditPage(results=results, next_cursor=_cursor(results[-1]) if len(found) > limit else None)


def _cursor(last: AuditEntry) -> str:
    packed = _PLACE.pack((last.at - _EPOCH) // timedelta(microseconds=1), last.id.bytes)
    return base64.urlsafe_b64encode(packed).decode()


def _before(cursor: str | None) -> AuditPlace | None:
    if cursor is None:
        return None
    try:
        microseconds, id_ = _PLACE.unpack(base64.b64decode(cursor, altchars=b"-_", validate=True))
        return AuditPlace(_EPOCH + timedelta(microseconds=microseconds), UUID(bytes=id_))
    except (binascii.Error, ValueError, OverflowError, struct.error):
        raise unknown_cursor() from None


AUDIT_ROUTES: Final[Sequence[ControllerRouterHandler]] = (list_audit, export_audit, list_own_audit)

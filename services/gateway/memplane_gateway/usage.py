"""Routes that tell what a tenant has and does, and what of its quotas is left."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Final
from uuid import UUID

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.limits import QuotaUse, UsageView
from memplane_core.domain.errors import invalid
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.limits import effective, stored_count, tenant_limits
from memplane_core.storage.session import Database
from memplane_core.storage.usage_days import tokens_today, usage_days
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.limits import LimitDirectory
from memplane_gateway.queries import refuse_unknown

_MOST_DAYS: Final = 366
_DAYS: Final = 30
_OK: Final = "Requests are counted a few seconds after they were answered, quotas at once."

# Read here and not by the framework, whose errors would name our variables.
First = Annotated[
    str | None,
    QueryParameter(
        name="from",
        description="First day, in UTC; by default 29 days before the last.",
        schema_extra={"format": "date"},
    ),
]
Last = Annotated[
    str | None,
    QueryParameter(name="to", description="Last day, in UTC; by default today.", schema_extra={"format": "date"}),
]


@get(
    "/v1/usage",
    operation_id="getUsage",
    summary="What you have used",
    tags=["Tenant"],
    responses={200: answer(UsageView, _OK), **problems(401, 403, 404, 422, 503)},
)
async def get_usage(
    request: ServiceRequest,
    database: NamedDependency[Database],
    *,
    limit_directory: NamedDependency[LimitDirectory],
    first: First = None,
    last: Last = None,
) -> UsageView:
    """Your tenant's memories, tokens and requests day by day, and its limits. Any key that is not bound may ask."""
    refuse_unknown(request, ("from", "to"))
    return await _usage(request.unbound().tenant, database, limit_directory, first=first, last=last)


@get(
    "/admin/v1/tenants/{tenant_id:uuid}/usage",
    operation_id="getTenantUsage",
    summary="What a tenant has used",
    tags=["Administration"],
    responses={200: answer(UsageView, _OK), **problems(401, 404, 422, 503)},
)
async def get_tenant_usage(
    request: ServiceRequest,
    tenant_id: FromPath[UUID],
    database: NamedDependency[Database],
    *,
    limit_directory: NamedDependency[LimitDirectory],
    first: First = None,
    last: Last = None,
) -> UsageView:
    """A tenant's memories, tokens and requests day by day, and its limits."""
    refuse_unknown(request, ("from", "to"))
    return await _usage(TenantId(tenant_id), database, limit_directory, first=first, last=last)


async def _usage(
    tenant: TenantId, database: Database, directory: LimitDirectory, *, first: str | None, last: str | None
) -> UsageView:
    now = datetime.now(UTC)
    begin, end = _day("from", first), _day("to", last)
    until = end or max(now.date(), begin or now.date())
    since = begin or until - timedelta(days=min(_DAYS - 1, (until - date.min).days))
    if since > until:
        raise invalid("from", "must not be later than to")
    if (until - since).days >= _MOST_DAYS:
        raise invalid("from", f"must be less than {_MOST_DAYS} days before to")
    async with database.tenant(tenant) as connection:
        limits = effective(await tenant_limits(tenant, connection), directory.defaults)
        stored = await stored_count(tenant, connection)
        tokens = await tokens_today(tenant, connection)
        days = await usage_days(tenant, connection, first=since, last=until)
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), UTC)
    return UsageView(
        tenant_id=tenant,
        stored_memories=_quota(stored.total, limits.stored_memories, resets_at=None),
        held_observations=stored.held,
        tokens_today=_quota(tokens, limits.tokens_a_day, resets_at=midnight),
        days=list(days),
        limits=limits,
    )


def _day(name: str, given: str | None) -> date | None:
    try:
        return msgspec.convert(given, date | None)
    except msgspec.ValidationError:
        raise invalid(name, "must be a day, like 2026-01-31") from None


def _quota(used: int, limit: int | None, *, resets_at: datetime | None) -> QuotaUse:
    left = None if limit is None else max(limit - used, 0)
    return QuotaUse(used=used, limit=limit, left=left, resets_at=resets_at)


USAGE_ROUTES: Final[Sequence[ControllerRouterHandler]] = (get_usage, get_tenant_usage)

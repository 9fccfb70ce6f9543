"""The first page: how the installation is doing, or what a tenant has and does."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.limits import UsageDay, UsageView
from memplane_core.contracts.system import SystemView
from memplane_core.domain.errors import NotFound
from memplane_gateway.console.calls import Refused
from memplane_gateway.console.pulse import Beat, Pulse
from memplane_gateway.console.visits import Visit


class Live(msgspec.Struct, frozen=True):
    """What the charts of the installation are drawn from.

    Attributes:
        beats: Of the gateway that answers, the oldest first.
        lag_s: Age of the oldest write that the index has not been told of; None while Postgres is away.
        pending: Rows that wait for the index, likewise.
        waiting: Messages in all queues.
    """

    at: float
    status: str
    beats: list[Beat]
    lag_s: float | None
    pending: int | None
    waiting: int


@get("/")
async def overview(visit: NamedDependency[Visit]) -> Response[bytes]:
    """The installation for operators; everybody else's own tenant."""
    if not visit.session.operator:
        return visit.go(f"/t/{visit.session.tenant}")
    system = (await visit.ask("/admin/v1/system")).read(SystemView)
    return await visit.page("overview.html", title="Overview", system=system)


@get("/live.json")
async def live(visit: NamedDependency[Visit], pulse: NamedDependency[Pulse]) -> Live:
    """The numbers of the charts. Raises NotFound for a tenant's key."""
    if not visit.session.operator:
        raise NotFound("there is no such page")
    system = (await visit.ask("/admin/v1/system")).read(SystemView)
    return Live(
        at=datetime.now(UTC).timestamp(),
        status=system.status,
        beats=list(pulse.beats),
        lag_s=None if system.index is None else system.index.lag_s,
        pending=None if system.index is None else system.index.pending,
        waiting=sum(queue.waiting for queue in system.queues),
    )


@get("/t/{tenant:uuid}")
async def summary(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """What a tenant has and does."""
    base = visit.base(tenant)
    fault: Refused | None = None
    usage: UsageView | None = None
    try:
        usage = (await visit.ask(f"{base}/usage")).read(UsageView)
    except Refused as refused:  # keys that are bound may sign in, and see their memories alone
        fault = refused
    generations: list[dict[str, Any]] = []
    if visit.session.operator:
        generations = (await visit.ask(f"{base}/generations")).read(dict[str, Any])["results"]
    return await visit.page(
        "summary.html", title="Summary", tenant=tenant, usage=usage, generations=generations, closed=fault
    )


@get("/t/{tenant:uuid}/usage.json")
async def usage_days(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> list[UsageDay]:
    """Each of the last 30 days, the oldest first, also those on which nothing happened."""
    usage = (await visit.ask(f"{visit.base(tenant)}/usage")).read(UsageView)
    known = {day.day: day for day in usage.days}
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=29 - n) for n in range(30)]
    return [known.get(day) or UsageDay(day=day, tokens=0, writes=0, searches=0) for day in days]


OVERVIEW_ROUTES: Final[Sequence[ControllerRouterHandler]] = (overview, live, summary, usage_days)

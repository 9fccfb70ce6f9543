"""Why a memory was not recalled: an id and a question, and each step of the search with the memory in it or out."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.why import Outcome, WhyResponse
from memplane_core.domain.memory import Memory
from memplane_gateway.console.calls import Refused
from memplane_gateway.console.explorer import FILTERS, closed_page, filters_of, ranking_of
from memplane_gateway.console.visits import Form, MemoriesClosed, Visit


class Step(msgspec.Struct, frozen=True):
    """A step of a search, as it is told.

    Attributes:
        outcomes: That a memory has which falls out here.
    """

    outcomes: tuple[Outcome, ...]
    passed: str


STEPS: Final = (
    Step(("missing",), "There is such a memory, and this key may see it."),
    Step(("forgotten", "merged"), "No marker hides it."),
    Step(("expired",), "It has not expired."),
    Step(("filter",), "The filters match it."),
    Step(("validity",), "It holds at the moment asked for."),
    Step(("not_nominated",), "The index, words or the fresh rows named it."),
    Step(("min_relevance",), "It is relevant enough."),
    Step(("rank",), "It is among the best."),
)


@get("/t/{tenant:uuid}/why")
async def why_page(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """The form, filled in with a memory that the address names."""
    try:
        visit.memory_key(tenant)
    except MemoriesClosed:
        return await closed_page(visit, tenant)
    named = visit.request.query_params.get("memory", "")
    return await _show(visit, tenant, Form({"memory": [named]} if named else {}))


@post("/t/{tenant:uuid}/why", status_code=200)
async def why(visit: NamedDependency[Visit], tenant: FromPath[UUID]) -> Response[bytes]:
    """How far the memory came."""
    form = await visit.form()
    body: dict[str, Any] = {
        "memory_id": form.text("memory"),
        "query": form.text("query"),
        "filters": filters_of(form),
        "top_k": form.number("top_k") or 10,
        "mode": form.text("mode") or "hybrid",
        "touch": False,
    }
    ranking = await ranking_of(visit, tenant)
    body |= {"preset": ranking.preset} if ranking.preset else {}
    if (least := form.number("min_relevance")) is not None:
        body["min_relevance"] = least
    key = visit.memory_key(tenant)
    told = (await visit.send("POST", "/v1/memories/why", key=key, body=body)).read(WhyResponse)
    memory: Memory | None = None
    if told.outcome != "missing":
        try:
            memory = (await visit.ask(f"/v1/memories/{UUID(form.text('memory'))}", key=key)).read(Memory)
        except Refused as refused:  # an expired one can be told of, and not be read
            if refused.status != 404:
                raise
    return await _show(visit, tenant, form, told=told, memory=memory)


async def _show(
    visit: Visit, tenant: UUID, form: Form, *, told: WhyResponse | None = None, memory: Memory | None = None
) -> Response[bytes]:
    return await visit.page(
        "why.html",
        title="Why not recalled",
        tenant=tenant,
        form=form,
        filters=FILTERS,
        told=told,
        memory=memory,
        steps=STEPS,
    )


WHY_PAGES: Final[Sequence[ControllerRouterHandler]] = (why_page, why)

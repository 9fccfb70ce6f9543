"""The public route for what became of a memory."""

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.history import HistoryPage
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.queries import refuse_unknown
from memplane_gateway.tenants import PageLimit

Cursor = Annotated[
    str | None, QueryParameter(min_length=1, max_length=1024, description="`next_cursor` of the answer before.")
]


@get(
    "/v1/memories/{memory_id:uuid}/history",
    operation_id="getMemoryHistory",
    summary="What became of a memory",
    tags=["Memories"],
    responses={200: answer(HistoryPage, "The newest first."), **problems(401, 403, 404, 422, 503, 504)},
)
async def get_memory_history(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    forwarder: NamedDependency[Forwarder],
    *,
    limit: PageLimit = 100,
    cursor: Cursor = None,
) -> Response[bytes]:
    """Who changed what of a memory, and when, with the old values. A key that is bound hears nothing of former owners.

    Needs the scope `memories:read`.
    """
    refuse_unknown(request, ("limit", "cursor"))
    return await forwarder.forward(
        request,
        "memories:read",
        path=f"/v1/memories/{memory_id}/history",
        query={"limit": limit, "cursor": cursor},
        repeatable=True,
    )


HISTORY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (get_memory_history,)

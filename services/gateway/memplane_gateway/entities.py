"""The public route for users, agents and sessions."""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.entities import EntityPage, EntityType
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.history import Cursor
from memplane_gateway.queries import refuse_unknown
from memplane_gateway.tenants import PageLimit

TypeQuery = Annotated[EntityType, QueryParameter(name="type", description="What is listed.")]


@get(
    "/v1/entities",
    operation_id="listEntities",
    summary="List users, agents or sessions",
    tags=["Memories"],
    responses={200: answer(EntityPage, "In the order of ids."), **problems(401, 403, 422, 503, 504)},
)
async def list_entities(
    request: ServiceRequest,
    forwarder: NamedDependency[Forwarder],
    *,
    entity_type: TypeQuery,
    limit: PageLimit = 100,
    cursor: Cursor = None,
) -> Response[bytes]:
    """Page through whom your active memories are about, with exact counts and when something last happened.

    Needs the scope `memories:read`.
    """
    refuse_unknown(request, ("type", "limit", "cursor"))
    return await forwarder.forward(
        request,
        "memories:read",
        path="/v1/entities",
        query={"type": entity_type, "limit": limit, "cursor": cursor},
        repeatable=True,
    )


ENTITY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (list_entities,)

"""The public lists of memories: by the fields of a query string, or by a filter of any kind."""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.filters import QUERY_FIELDS, query_filter, query_moment
from memplane_core.contracts.lists import ListRequest, Sort
from memplane_core.contracts.memories import MemoryPage
from memplane_core.domain.filters import parse_filter
from memplane_core.domain.validity import valid_at_of
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.queries import refuse_unknown

_BODY_BYTES: Final = 256 * 1024
_TAGS: Final = ["Memories"]
_PAGE: Final = "In the order asked for; `next_cursor` is null on the last page."

EntityQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=256, description="Only memories with exactly this value.")
]
LabelQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=128, description="Only memories with exactly this value.")
]
SceneQuery = Annotated[
    str | None, QueryParameter(min_length=1, max_length=128, description="Only memories that have this tag.")
]
SortQuery = Annotated[
    Sort, QueryParameter(description="What the list is ordered by, `-` for the newest or largest first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="Most memories in one answer.")]
Cursor = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=1024,
        description="`next_cursor` of the answer before; it goes with the same filter and `sort`.",
    ),
]

ValidAtQuery = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=64,
        description="Only memories that hold at this moment, RFC 3339 or epoch seconds; `any` for all whenever they "
        "held. When left out, what holds now.",
    ),
]


@get(
    "/v1/memories",
    operation_id="listMemories",
    summary="List memories",
    tags=_TAGS,
    responses={200: answer(MemoryPage, _PAGE), **problems(401, 403, 422, 503, 504)},
)
async def list_memories(
    request: ServiceRequest,
    forwarder: NamedDependency[Forwarder],
    *,
    user_id: EntityQuery = None,
    agent_id: EntityQuery = None,
    session_id: EntityQuery = None,
    memory_type: LabelQuery = None,
    external_id: EntityQuery = None,
    actor: EntityQuery = None,
    source: LabelQuery = None,
    scene: SceneQuery = None,
    sort: SortQuery = "-created_at",
    limit: Limit = 100,
    cursor: Cursor = None,
    valid_at: ValidAtQuery = None,
) -> Response[bytes]:
    """Page through all memories that match, exact to the end.

    Needs the scope `memories:read`.
    """
    fields = {
        "user_id": user_id,
        "agent_id": agent_id,
        "session_id": session_id,
        "memory_type": memory_type,
        "external_id": external_id,
        "actor": actor,
        "source": source,
        "scene": scene,
    }
    refuse_unknown(request, {*QUERY_FIELDS, "sort", "limit", "cursor", "valid_at"})
    query_filter(fields)
    valid_at_of(query_moment(valid_at), pointer="valid_at")
    return await forwarder.forward(
        request,
        "memories:read",
        path="/v1/memories",
        query={**fields, "sort": sort, "limit": limit, "cursor": cursor, "valid_at": valid_at},
        repeatable=True,
    )


@post(
    "/v1/memories/list",
    operation_id="listMatchingMemories",
    summary="List memories by a filter",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=_BODY_BYTES,
    responses={200: answer(MemoryPage, _PAGE), **problems(400, 401, 403, 413, 422, 503, 504)},
)
async def list_matching_memories(
    request: ServiceRequest, data: JSONBody[ListRequest], *, forwarder: NamedDependency[Forwarder]
) -> Response[bytes]:
    """Page through all memories that a filter of any kind matches, exact to the end; with `state` through hidden ones.

    Needs the scope `memories:read`.
    """
    parse_filter(data.filters)
    valid_at_of(data.valid_at, pointer="/valid_at")
    return await forwarder.forward(request, "memories:read", path="/v1/memories/list", repeatable=True)


LIST_ROUTES: Final[Sequence[ControllerRouterHandler]] = (list_memories, list_matching_memories)

"""The public memory routes: checked here, carried out by the retrieval service, answered as it answers."""

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from litestar import Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY
from memplane_core.contracts.checks import check_batch, check_patch, check_recall, check_write
from memplane_core.contracts.limits import MAX_BODY_BYTES
from memplane_core.contracts.memories import (
    BatchWrite,
    BatchWritten,
    MemoryPatch,
    MemoryView,
    MemoryWrite,
    SearchRequest,
    SearchResponse,
    WrittenMemory,
)
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.limits import check_batch_items
from memplane_gateway.lists import LIST_ROUTES

SINGLE_BODY_BYTES: Final = 256 * 1024
BATCH_BODY_BYTES: Final = MAX_BODY_BYTES
INDEX_WAIT_S: Final = 30.0

_TAGS: Final = ["Memories"]

IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        pattern=r"^[\x20-\x7e]{1,255}$",
        schema_extra={"pattern": r'^(\*|(W/)?"[0-9]{1,9}")$'},
        description="An `ETag` you were given: the memory is changed only if it still is at that version, "
        "otherwise the answer is 412.",
    ),
]


@post(
    "/v1/memories",
    operation_id="writeMemory",
    summary="Write a memory",
    tags=_TAGS,
    status_code=201,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        201: answer(WrittenMemory, "Stored; the next search can find it."),
        200: answer(
            WrittenMemory,
            "An equal memory was there (`deduplicated` is true), or the one with this `external_id` was updated.",
        ),
        202: answer(
            WrittenMemory, "Stored for good, and not embedded yet: found by its words now, by its meaning soon."
        ),
        **problems(400, 401, 403, 404, 409, 413, 422, 503, 504),
    },
)
async def write_memory(
    request: ServiceRequest,
    data: JSONBody[MemoryWrite],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Store one memory. What you leave out takes its default; `content` is kept to the byte.

    Needs the scope `memories:write`.
    """
    check_write(data)
    return await forwarder.forward(
        request, "memories:write", path="/v1/memories", headers={IDEMPOTENCY_KEY: idempotency_key}
    )


@post(
    "/v1/memories/batch",
    operation_id="writeMemories",
    summary="Write many memories",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=BATCH_BODY_BYTES,
    responses={
        200: answer(BatchWritten, "All stored: one result for each memory, in the order of the request."),
        **problems(400, 401, 403, 409, 413, 422, 503, 504),
    },
)
async def write_memories(
    request: ServiceRequest,
    data: JSONBody[BatchWrite],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Store 1 to 1,000 memories, all or none. `wait: "index"` answers once the index holds them all.

    Needs the scope `memories:write`.
    """
    check_batch(data)
    check_batch_items(request, len(data.memories))
    return await forwarder.forward(
        request,
        "memories:write",
        path="/v1/memories/batch",
        headers={IDEMPOTENCY_KEY: idempotency_key},
        extra_s=INDEX_WAIT_S if data.wait == "index" else 0.0,
    )


@post(
    "/v1/memories/search",
    operation_id="searchMemories",
    summary="Recall memories",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(SearchResponse, "Best first. `degraded` names what could not be asked."),
        **problems(400, 401, 403, 413, 422, 503, 504),
    },
)
async def search_memories(
    request: ServiceRequest,
    data: JSONBody[SearchRequest],
    *,
    forwarder: NamedDependency[Forwarder],
) -> Response[bytes]:
    """Recall what bears on a question, ranked by meaning, freshness, importance and proven usefulness.

    With `include_short_term` the answer also holds what a session has observed. Needs the scope `memories:read`.
    """
    check_recall(data)
    return await forwarder.forward(request, "memories:read", path="/v1/memories/search", repeatable=True)


@get(
    "/v1/memories/{memory_id:uuid}",
    operation_id="getMemory",
    summary="Get a memory",
    tags=_TAGS,
    responses={200: answer(MemoryView, "The memory."), **problems(401, 403, 404, 503, 504)},
)
async def get_memory(
    request: ServiceRequest, memory_id: FromPath[UUID], forwarder: NamedDependency[Forwarder]
) -> Response[bytes]:
    """One memory by its id.

    Needs the scope `memories:read`.
    """
    return await forwarder.forward(request, "memories:read", path=f"/v1/memories/{memory_id}", repeatable=True)


@patch(
    "/v1/memories/{memory_id:uuid}",
    operation_id="updateMemory",
    summary="Update a memory",
    tags=_TAGS,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(MemoryView, "The memory as it is now."),
        **problems(400, 401, 403, 404, 409, 412, 413, 422, 503, 504),
    },
)
async def update_memory(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    *,
    data: JSONBody[MemoryPatch],
    forwarder: NamedDependency[Forwarder],
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Change what is named and keep all else.

    Needs the scope `memories:write`.
    """
    check_patch(data)
    return await forwarder.change(request, memory_id, if_match=if_match, idempotency_key=idempotency_key)


@delete(
    "/v1/memories/{memory_id:uuid}",
    operation_id="deleteMemory",
    summary="Delete a memory",
    tags=_TAGS,
    status_code=200,  # a default that is not used; with 204 Litestar would not allow the body of a problem
    responses={
        204: answer(None, "Gone for good; getting it is 404 from now on."),
        **problems(401, 403, 404, 409, 412, 422, 503, 504),
    },
)
async def delete_memory(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    *,
    forwarder: NamedDependency[Forwarder],
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Delete one memory everywhere. This cannot be undone.

    Needs the scope `memories:write`.
    """
    return await forwarder.change(request, memory_id, if_match=if_match, idempotency_key=idempotency_key)


MEMORY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    write_memory,
    write_memories,
    search_memories,
    *LIST_ROUTES,
    get_memory,
    update_memory,
    delete_memory,
)

"""The public routes that hide memories, bring them back, and take opinions of them."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY
from memplane_core.contracts.markers import FeedbackCounts, FeedbackGiven, ForgetRequest, Forgotten
from memplane_core.contracts.memories import MemoryView
from memplane_core.domain.errors import invalid
from memplane_core.domain.filters import parse_filter
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.memories import SINGLE_BODY_BYTES, IfMatch

_TAGS: Final = ["Memories"]

MANY_S: Final = 20.0
"""On top of a request's deadline: forgetting many begins no batch after 8 s, and finishes the one it is at."""


@post(
    "/v1/memories/{memory_id:uuid}/forget",
    operation_id="forgetMemory",
    summary="Forget a memory",
    tags=_TAGS,
    status_code=200,
    responses={
        200: answer(MemoryView, "Hidden from every search and list; `purge_at` is when it is deleted for good."),
        **problems(401, 403, 404, 409, 412, 422, 503, 504),
    },
)
async def forget_memory(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    *,
    forwarder: NamedDependency[Forwarder],
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Hide a memory at once. Until `purge_at` it can be restored; how long that is says the policy.

    Needs the scope `memories:write`.
    """
    return await forwarder.change(
        request, memory_id, deed="/forget", if_match=if_match, idempotency_key=idempotency_key
    )


@post(
    "/v1/memories/{memory_id:uuid}/restore",
    operation_id="restoreMemory",
    summary="Restore a memory",
    tags=_TAGS,
    status_code=200,
    responses={
        200: answer(MemoryView, "Active again, as it was before."),
        **problems(401, 403, 404, 409, 412, 422, 503, 504),
    },
)
async def restore_memory(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    *,
    forwarder: NamedDependency[Forwarder],
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Bring back a memory that was forgotten, or merged into another one, which gives back what it took.

    Where an active one has become the same, that is a 409 with its `id`.

    Needs the scope `memories:write`.
    """
    return await forwarder.change(
        request, memory_id, deed="/restore", if_match=if_match, idempotency_key=idempotency_key
    )


@post(
    "/v1/memories/{memory_id:uuid}/feedback",
    operation_id="giveFeedback",
    summary="Say whether a memory helped",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(FeedbackCounts, "What was said of it so far."),
        **problems(400, 401, 403, 404, 409, 412, 413, 422, 503, 504),
    },
)
async def give_feedback(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    *,
    data: JSONBody[FeedbackGiven],
    forwarder: NamedDependency[Forwarder],
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Count an opinion of a memory. It moves the priority when that is next worked out, and changes nothing else.

    Needs the scope `memories:write`.
    """
    del data
    return await forwarder.change(
        request, memory_id, deed="/feedback", if_match=if_match, idempotency_key=idempotency_key
    )


@post(
    "/v1/memories/forget",
    operation_id="forgetMemories",
    summary="Forget all that match",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(Forgotten, "How many are hidden. Where `complete` is false, send the request again for the rest."),
        **problems(400, 401, 403, 409, 413, 422, 503, 504),
    },
)
async def forget_memories(
    request: ServiceRequest,
    data: JSONBody[ForgetRequest],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Hide every active memory that a filter matches, 500 in a transaction. An empty filter is refused.

    What is hidden stays so whatever happens on the way, and sending the request again hides the rest. `dry_run` tells
    how many match. Needs the scope `memories:write`.
    """
    if not data.filters:
        raise invalid("/filters", "must hold at least one condition: an empty filter would forget everything")
    parse_filter(data.filters)
    return await forwarder.forward(
        request,
        "memories:write",
        path="/v1/memories/forget",
        headers={IDEMPOTENCY_KEY: idempotency_key},
        repeatable=data.dry_run,
        extra_s=MANY_S,
    )


MARKER_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    forget_memory,
    restore_memory,
    give_feedback,
    forget_memories,
)

"""The public routes that merge memories and take that back."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY
from memplane_core.contracts.merges import Merged, MergeRequest, Undone, UndoRequest, check_merge
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.memories import SINGLE_BODY_BYTES

_TAGS: Final = ["Memories"]


@post(
    "/v1/memories/merge",
    operation_id="mergeMemories",
    summary="Merge memories",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(Merged, "The memory that stays, and those that it stands for."),
        **problems(400, 401, 403, 404, 409, 413, 422, 503, 504),
    },
)
async def merge_memories(
    request: ServiceRequest,
    data: JSONBody[MergeRequest],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Make one of memories that tell the same. The survivor keeps its text; the others can be restored for a while.

    It gets their scenes, the sum of their uses, and the greatest importance and priority. Needs the scope
    `memories:write`.
    """
    check_merge(data)
    return await forwarder.forward(
        request, "memories:write", path="/v1/memories/merge", headers={IDEMPOTENCY_KEY: idempotency_key}
    )


@post(
    "/v1/memories/merge/undo",
    operation_id="undoMerge",
    summary="Undo merges",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(Undone, "Those that are active again. Where `complete` is false, send it again for the rest."),
        **problems(400, 401, 403, 404, 409, 413, 422, 503, 504),
    },
)
async def undo_merge(
    request: ServiceRequest,
    data: JSONBody[UndoRequest],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Restore all that was merged into a memory, which gives back what it took. `restore` does so for one of them.

    Needs the scope `memories:write`.
    """
    del data
    return await forwarder.forward(
        request, "memories:write", path="/v1/memories/merge/undo", headers={IDEMPOTENCY_KEY: idempotency_key}
    )


MERGE_ROUTES: Final[Sequence[ControllerRouterHandler]] = (merge_memories, undo_merge)

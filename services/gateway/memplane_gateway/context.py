"""The public route that packs memories into a prompt."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.checks import check_recall
from memplane_core.contracts.context import ContextRequest, ContextResponse
from memplane_core.domain.context import check_template
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.memories import SINGLE_BODY_BYTES


@post(
    "/v1/context",
    operation_id="packContext",
    summary="Pack memories for a prompt",
    tags=["Memories"],
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(ContextResponse, "A block of text within the budget, and what stands in it."),
        **problems(400, 401, 403, 413, 422, 503, 504),
    },
)
async def pack_context(
    request: ServiceRequest, data: JSONBody[ContextRequest], *, forwarder: NamedDependency[Forwarder]
) -> Response[bytes]:
    """Recall what bears on a query, and give as much of it as fits, the most useful first, ready to be put in a prompt.

    Needs the scope `memories:read`.
    """
    check_recall(data)
    if data.template is not None:
        check_template(data.template, pointer="/template")
    return await forwarder.forward(request, "memories:read", path="/v1/context", repeatable=True)


CONTEXT_ROUTES: Final[Sequence[ControllerRouterHandler]] = (pack_context,)

"""The public route that says why a memory was not recalled."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.checks import check_recall
from memplane_core.contracts.why import WhyRequest, WhyResponse
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.memories import SINGLE_BODY_BYTES


@post(
    "/v1/memories/why",
    operation_id="whyNotRecalled",
    summary="Why a memory was not recalled",
    tags=["Memories"],
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(WhyResponse, "Where it fell out, with its rank and score where it came that far."),
        **problems(400, 401, 403, 413, 422, 503, 504),
    },
)
async def why_not_recalled(
    request: ServiceRequest, data: JSONBody[WhyRequest], *, forwarder: NamedDependency[Forwarder]
) -> Response[bytes]:
    """Run a search once more and follow one memory through it. It leaves no trace in what it finds.

    A memory of another tenant, or of somebody whom the key is not bound to, is `missing` like one that never was.
    Needs the scope `memories:read`.
    """
    check_recall(data)
    return await forwarder.forward(request, "memories:read", path="/v1/memories/why", repeatable=True)


WHY_ROUTES: Final[Sequence[ControllerRouterHandler]] = (why_not_recalled,)

"""The route that packs memories into a prompt."""

from typing import Final

from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from memplane_core.contracts.checks import check_recall
from memplane_core.contracts.context import ContextRequest, ContextResponse
from memplane_core.web.request import ServiceRequest
from memplane_retrieval.context import ContextPacker
from memplane_retrieval.routes import SINGLE_BODY_BYTES


@post("/v1/context", status_code=200, request_max_body_size=SINGLE_BODY_BYTES)
async def pack_context(
    request: ServiceRequest, data: JSONBody[ContextRequest], context_packer: NamedDependency[ContextPacker]
) -> ContextResponse:
    """Pack what bears on a query into a block of text."""
    principal = request.require("memories:read", bound=True)
    check_recall(data)
    return await context_packer.pack(principal, data)


CONTEXT_ROUTES: Final = [pack_context]

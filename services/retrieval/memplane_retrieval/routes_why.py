"""The route that says why a memory was not recalled."""

from typing import Final

from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from memplane_core.contracts.checks import check_recall
from memplane_core.contracts.why import WhyRequest, WhyResponse
from memplane_core.web.request import ServiceRequest
from memplane_retrieval.routes import SINGLE_BODY_BYTES
from memplane_retrieval.why import Explainer


@post("/v1/memories/why", status_code=200, request_max_body_size=SINGLE_BODY_BYTES)
async def why_not_recalled(
    request: ServiceRequest, data: JSONBody[WhyRequest], explainer: NamedDependency[Explainer]
) -> WhyResponse:
    """Tell where a memory falls out of a search."""
    principal = request.require("memories:read", bound=True)
    check_recall(data)
    return await explainer.explain(principal, data)


WHY_ROUTES: Final = [why_not_recalled]

"""Routes that hide memories, bring them back, and take opinions of them."""

from typing import Final
from uuid import UUID

from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from memplane_core.contracts.markers import FeedbackCounts, FeedbackGiven, ForgetRequest, Forgotten
from memplane_core.domain.memory import Memory
from memplane_core.web.repeats import fingerprint_of
from memplane_core.web.request import ServiceRequest
from memplane_retrieval.headers import etag_of, if_match_of
from memplane_retrieval.markers import Markers

BODY_BYTES: Final = 256 * 1024


@post("/v1/memories/{memory_id:uuid}/forget", status_code=200)
async def forget_memory(
    request: ServiceRequest, memory_id: FromPath[UUID], markers: NamedDependency[Markers]
) -> Response[Memory]:
    """Hide one memory."""
    principal = request.require("memories:write", bound=True)
    fingerprint = await fingerprint_of(request)
    done = await markers.forget(principal, memory_id, if_match=if_match_of(request), fingerprint=fingerprint)
    return Response(done.outcome, headers={"ETag": etag_of(done.outcome.version), **done.headers})


@post("/v1/memories/{memory_id:uuid}/restore", status_code=200)
async def restore_memory(
    request: ServiceRequest, memory_id: FromPath[UUID], markers: NamedDependency[Markers]
) -> Response[Memory]:
    """Bring one memory back."""
    principal = request.require("memories:write", bound=True)
    fingerprint = await fingerprint_of(request)
    done = await markers.restore(principal, memory_id, if_match=if_match_of(request), fingerprint=fingerprint)
    return Response(done.outcome, headers={"ETag": etag_of(done.outcome.version), **done.headers})


@post("/v1/memories/{memory_id:uuid}/feedback", status_code=200, request_max_body_size=BODY_BYTES)
async def give_feedback(
    request: ServiceRequest,
    memory_id: FromPath[UUID],
    data: JSONBody[FeedbackGiven],
    markers: NamedDependency[Markers],
) -> Response[FeedbackCounts]:
    """Count an opinion of one memory."""
    principal = request.require("memories:write", bound=True)
    fingerprint = await fingerprint_of(request)
    done = await markers.feedback(
        principal, memory_id, given=data, if_match=if_match_of(request), fingerprint=fingerprint
    )
    return Response(done.outcome, headers=done.headers)


@post("/v1/memories/forget", status_code=200, request_max_body_size=BODY_BYTES)
async def forget_memories(
    request: ServiceRequest, data: JSONBody[ForgetRequest], markers: NamedDependency[Markers]
) -> Response[Forgotten]:
    """Hide all memories that match."""
    principal = request.require("memories:write", bound=True)
    done = await markers.forget_matching(principal, data, fingerprint=await fingerprint_of(request))
    return Response(done.outcome, headers=done.headers)


MARKER_ROUTES: Final = [forget_memory, restore_memory, give_feedback, forget_memories]

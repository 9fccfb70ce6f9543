"""Routes that merge memories and take that back."""

from typing import Final

from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from memplane_core.contracts.merges import Merged, MergeRequest, Undone, UndoRequest, check_merge
from memplane_core.web.repeats import fingerprint_of
from memplane_core.web.request import ServiceRequest
from memplane_retrieval.headers import etag_of
from memplane_retrieval.merges import Merger

BODY_BYTES: Final = 256 * 1024


@post("/v1/memories/merge", status_code=200, request_max_body_size=BODY_BYTES)
async def merge_memories(
    request: ServiceRequest, data: JSONBody[MergeRequest], merger: NamedDependency[Merger]
) -> Response[Merged]:
    """Make one of some memories."""
    principal = request.require("memories:write", bound=True)
    check_merge(data)
    done = await merger.merge(principal, data, fingerprint=await fingerprint_of(request))
    return Response(done.outcome, headers={"ETag": etag_of(done.outcome.survivor.version), **done.headers})


@post("/v1/memories/merge/undo", status_code=200, request_max_body_size=BODY_BYTES)
async def undo_merge(
    request: ServiceRequest, data: JSONBody[UndoRequest], merger: NamedDependency[Merger]
) -> Response[Undone]:
    """Restore all that was merged into a memory."""
    principal = request.require("memories:write", bound=True)
    done = await merger.undo(principal, data.survivor, fingerprint=await fingerprint_of(request))
    return Response(done.outcome, headers=done.headers)


MERGE_ROUTES: Final = [merge_memories, undo_merge]

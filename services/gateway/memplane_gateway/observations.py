"""The public routes of short-term memory: what sessions observe, hold and give back, and their end."""

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler

from memplane_core.clients.retrieval import IDEMPOTENCY_KEY
from memplane_core.contracts.checks import check_session
from memplane_core.contracts.memories import SessionRef
from memplane_core.contracts.observations import (
    ObservationBatch,
    ObservationPage,
    ObservationsTaken,
    ObservationTaken,
    ObservationWrite,
    SessionEnded,
    check_batch,
    check_observation,
)
from memplane_core.web.request import ServiceRequest
from memplane_gateway.documents import answer, problems
from memplane_gateway.forwarding import Forwarder
from memplane_gateway.idempotency import IdempotencyKey
from memplane_gateway.limits import check_batch_items
from memplane_gateway.memories import SINGLE_BODY_BYTES
from memplane_gateway.queries import refuse_unknown

BATCH_BODY_BYTES: Final = 24 * 1024 * 1024

_TAGS: Final = ["Short-term memory"]

SessionQuery = Annotated[str, QueryParameter(min_length=1, max_length=256, description="Name of the session.")]
OwnerQuery = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=256,
        description="Part of the session's name: without it, the session that names none, or what the key is bound to.",
    ),
]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="Most observations in one answer.")]
Cursor = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=19,
        pattern="^[0-9]+$",
        description="`next_cursor` of the answer before, for the same session.",
    ),
]


@post(
    "/v1/observations",
    operation_id="observe",
    summary="Observe something",
    tags=_TAGS,
    status_code=201,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        201: answer(ObservationTaken, "The session holds it, or it has become a memory: `promoted` tells."),
        200: answer(ObservationTaken, "Not kept: it matters less than the policy's `short_term.threshold`."),
        **problems(400, 401, 403, 404, 409, 413, 422, 503, 504),
    },
)
async def observe(
    request: ServiceRequest,
    data: JSONBody[ObservationWrite],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Let a session hold one more observation. What leaves for it becomes a memory of the same id, exactly once.

    Needs the scope `memories:write`.
    """
    check_observation(data, data.session)
    return await forwarder.forward(
        request, "memories:write", path="/v1/observations", headers={IDEMPOTENCY_KEY: idempotency_key}
    )


@post(
    "/v1/observations/batch",
    operation_id="observeMany",
    summary="Observe several things",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=BATCH_BODY_BYTES,
    responses={
        200: answer(ObservationsTaken, "All are taken: one result for each, in the order of the request."),
        **problems(400, 401, 403, 404, 409, 413, 422, 503, 504),
    },
)
async def observe_many(
    request: ServiceRequest,
    data: JSONBody[ObservationBatch],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Let a session hold 1 to 100 more observations, one after the other as if each had come alone; all or none.

    Needs the scope `memories:write`.
    """
    check_batch(data)
    check_batch_items(request, len(data.observations), noun="observations")
    return await forwarder.forward(
        request, "memories:write", path="/v1/observations/batch", headers={IDEMPOTENCY_KEY: idempotency_key}
    )


@get(
    "/v1/observations",
    operation_id="listObservations",
    summary="List what a session holds",
    tags=_TAGS,
    responses={
        200: answer(ObservationPage, "Oldest first; `next_cursor` is null on the last page."),
        **problems(401, 403, 404, 422, 503, 504),
    },
)
async def list_observations(
    request: ServiceRequest,
    forwarder: NamedDependency[Forwarder],
    *,
    session_id: SessionQuery,
    user_id: OwnerQuery = None,
    agent_id: OwnerQuery = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response[bytes]:
    """The observations of a session that have not become memories. Reading them changes nothing.

    Needs the scope `memories:read`.
    """
    given: dict[str, str | int | None] = {
        "session_id": session_id,
        "user_id": user_id,
        "agent_id": agent_id,
        "limit": limit,
        "cursor": cursor,
    }
    refuse_unknown(request, given)
    return await forwarder.forward(
        request,
        "memories:read",
        path="/v1/observations",
        query=given,
        repeatable=True,
    )


@delete(
    "/v1/observations/{observation_id:uuid}",
    operation_id="deleteObservation",
    summary="Take an observation back",
    tags=_TAGS,
    status_code=200,  # a default that is not used; with 204 Litestar would not allow the body of a problem
    responses={
        204: answer(None, "Gone for good: its session does not hold it, and it becomes no memory."),
        **problems(401, 403, 404, 409, 422, 503, 504),
    },
)
async def delete_observation(
    request: ServiceRequest,
    observation_id: FromPath[UUID],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Delete one observation that a session holds. One that has become a memory is a 404 that says so, and stays.

    Needs the scope `memories:write`.
    """
    return await forwarder.forward(
        request,
        "memories:write",
        path=f"/v1/observations/{observation_id}",
        headers={IDEMPOTENCY_KEY: idempotency_key},
    )


@post(
    "/v1/sessions/end",
    operation_id="endSession",
    summary="End a session",
    tags=_TAGS,
    status_code=200,
    request_max_body_size=SINGLE_BODY_BYTES,
    responses={
        200: answer(SessionEnded, "It holds nothing any more; `promoted` names the memories, in order."),
        **problems(400, 401, 403, 404, 409, 413, 422, 503, 504),
    },
)
async def end_session(
    request: ServiceRequest,
    data: JSONBody[SessionRef],
    *,
    forwarder: NamedDependency[Forwarder],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Make memories of all that a session holds. Whoever observes in it again begins it anew.

    Needs the scope `memories:write`.
    """
    check_session(data)
    return await forwarder.forward(
        request,
        "memories:write",
        path="/v1/sessions/end",
        headers={IDEMPOTENCY_KEY: idempotency_key},
    )


OBSERVATION_ROUTES: Final[Sequence[ControllerRouterHandler]] = (
    observe,
    observe_many,
    list_observations,
    delete_observation,
    end_session,
)

"""The routes of short-term memory, as the gateway forwards them."""

from typing import Annotated, Final
from uuid import UUID

from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import UNSET

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
from memplane_core.web.repeats import fingerprint_of
from memplane_core.web.request import ServiceRequest
from memplane_retrieval.short_term import ShortTerm

SINGLE_BODY_BYTES: Final = 256 * 1024
BATCH_BODY_BYTES: Final = 24 * 1024 * 1024

PageSize = Annotated[int, QueryParameter(ge=1, le=1000)]


@post("/v1/observations", request_max_body_size=SINGLE_BODY_BYTES)
async def observe(
    request: ServiceRequest, data: JSONBody[ObservationWrite], short_term: NamedDependency[ShortTerm]
) -> Response[ObservationTaken]:
    """Take one observation."""
    principal = request.require("memories:write", bound=True)
    check_observation(data, data.session)
    done = await short_term.observe(
        principal, data.session, observed=[data], batch=False, fingerprint=await fingerprint_of(request)
    )
    [taken] = done.outcome
    return Response(taken, status_code=201 if taken.kept else 200, headers=done.headers)


@post("/v1/observations/batch", status_code=200, request_max_body_size=BATCH_BODY_BYTES)
async def observe_many(
    request: ServiceRequest, data: JSONBody[ObservationBatch], short_term: NamedDependency[ShortTerm]
) -> Response[ObservationsTaken]:
    """Take several observations of one session, all or none."""
    principal = request.require("memories:write", bound=True)
    check_batch(data)
    session = SessionRef(session_id=data.session_id, user_id=data.user_id, agent_id=data.agent_id)
    done = await short_term.observe(
        principal, session, observed=data.observations, batch=True, fingerprint=await fingerprint_of(request)
    )
    return Response(ObservationsTaken(results=done.outcome), headers=done.headers)


@get("/v1/observations")
async def list_observations(
    request: ServiceRequest,
    short_term: NamedDependency[ShortTerm],
    *,
    session_id: FromQuery[str],
    user_id: FromQuery[str | None] = None,
    agent_id: FromQuery[str | None] = None,
    limit: PageSize = 100,
    cursor: FromQuery[str | None] = None,
) -> ObservationPage:
    """What a session holds, oldest first."""
    principal = request.require("memories:read", bound=True)
    session = SessionRef(
        session_id=session_id,
        user_id=UNSET if user_id is None else user_id,
        agent_id=UNSET if agent_id is None else agent_id,
    )
    check_session(session, pointer="")
    return await short_term.page(principal, session, limit=limit, cursor=cursor)


@delete("/v1/observations/{observation_id:uuid}")
async def delete_observation(
    request: ServiceRequest, observation_id: FromPath[UUID], short_term: NamedDependency[ShortTerm]
) -> Response[None]:
    """Take an observation back that a session holds."""
    principal = request.require("memories:write", bound=True)
    done = await short_term.delete(principal, observation_id, fingerprint=await fingerprint_of(request))
    return Response(None, status_code=204, headers=done.headers)


@post("/v1/sessions/end", status_code=200, request_max_body_size=SINGLE_BODY_BYTES)
async def end_session(
    request: ServiceRequest, data: JSONBody[SessionRef], short_term: NamedDependency[ShortTerm]
) -> Response[SessionEnded]:
    """Make memories of all that a session holds."""
    principal = request.require("memories:write", bound=True)
    check_session(data)
    done = await short_term.end(principal, data, fingerprint=await fingerprint_of(request))
    return Response(done.outcome, headers=done.headers)


SESSION_ROUTES: Final = [observe, observe_many, list_observations, delete_observation, end_session]

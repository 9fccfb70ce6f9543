"""Every error as RFC 9457 `application/problem+json`, rendered here and nowhere else."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import Scope

from memplane_core.contracts.imports import ImportCounts
from memplane_core.domain.errors import (
    Fault,
    InvalidRequest,
    MalformedRequest,
    MemplaneError,
    NotFound,
    PayloadTooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from memplane_core.observability.logs import get_logger
from memplane_core.observability.metrics import PROBLEMS
from memplane_core.observability.process import process_name

PROBLEM_MEDIA_TYPE = "application/problem+json"

TRACE_ID: Final = "trace_id"
"""Where the id of a request's trace is kept in its state."""

_OWN: Final[Mapping[int, type[MemplaneError]]] = {
    error.status: error
    for error in (MalformedRequest, Unauthorized, NotFound, PayloadTooLarge, UnsupportedMedia, InvalidRequest)
}
"""What Litestar's own errors are called here, so that a status has one code whoever raised it."""

_MAX_FAULTS: Final = 100
_MAX_DETAIL: Final = 2000
"""Of what is told of one request, in faults and in characters."""

_TOLD: Final = ("quota", "limit", "used", "stored")

_log = get_logger(__name__)


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of an error answer.

    Attributes:
        type: A URI reference that names the kind of problem; relative to the documentation.
        code: The same, for programs: stable, snake case.
        errors: What is wrong with which field.
        request_id: Give this when asking for help.
        id: The memory that stands in the way, for a conflict that has one.
        quota: The quota that is full, with its `limit` and what is `used` of it.
        stored: What an import had done before it stopped.
        trace_id: What the logs of all services call the request, where its caller chose another `request_id`.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Fault] = []
    id: str | None = None
    quota: str | None = None
    limit: int | None = None
    used: int | None = None
    stored: ImportCounts | None = None
    trace_id: str | None = None


def render(problem: Problem, *, retry_after: int | None = None) -> Response[bytes]:
    """A problem as a response."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="memplane"'
    return Response(
        msgspec.json.encode(problem), status_code=problem.status, media_type=PROBLEM_MEDIA_TYPE, headers=headers
    )


def problem_of(error: MemplaneError, *, request_id: str, trace_id: str | None = None) -> Problem:
    """The problem that tells a caller of `error`."""
    found = error.extra.get("id")
    PROBLEMS.labels(process_name(), error.code).inc()
    return Problem(
        type=f"/docs/problems#{error.code}",
        title=error.title,
        status=error.status,
        detail=error.detail[:_MAX_DETAIL],
        code=error.code,
        request_id=request_id,
        errors=list(error.faults[:_MAX_FAULTS]),
        id=None if found is None else str(found),
        trace_id=trace_id,
        **cast("dict[str, Any]", {name: error.extra[name] for name in _TOLD if name in error.extra}),
    )


def _request_id(request: Request[Any, Any, Any]) -> str:
    return str(request.scope["state"].get("request_id", ""))


def trace_of(scope: Scope) -> str | None:
    """The id of a request's trace, where it is not the request's own."""
    state = scope["state"]
    found = state.get(TRACE_ID)
    return str(found) if found and found != state.get("request_id") else None


def _own(request: Request[Any, Any, Any], error: MemplaneError) -> Response[bytes]:
    problem = problem_of(error, request_id=_request_id(request), trace_id=trace_of(request.scope))
    return render(problem, retry_after=error.retry_after)


def _http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    status = (
        HTTPStatus.UNPROCESSABLE_ENTITY if isinstance(error, ValidationException) else HTTPStatus(error.status_code)
    )
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _unexpected(request, error)
    own = _OWN.get(status)
    code = own.code if own else status.name.lower()
    faults = _faults(error)
    PROBLEMS.labels(process_name(), code).inc()
    problem = Problem(
        type=f"/docs/problems#{code}",
        title=own.title if own else status.phrase,
        status=status,
        detail="; ".join(f"{fault.pointer or 'body'}: {fault.detail}" for fault in faults) or error.detail,
        code=code,
        request_id=_request_id(request),
        errors=faults,
        trace_id=trace_of(request.scope),
    )
    answer = render(problem)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


def _faults(error: HTTPException) -> list[Fault]:
    """Litestar's list of what is wrong with parameters."""
    if not isinstance(error, ValidationException) or not isinstance(error.extra, list):
        return []
    items = cast("list[dict[str, str]]", error.extra)
    return [
        Fault("", "a JSON body is required") if item.get("key") == "data" else Fault(item["key"], item["message"])
        for item in items
        if "key" in item and "message" in item
    ]


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    # The template: a path that was called can hold anything.
    _log.error("request failed", route=request.scope.get("path_template", ""), exc_info=error)
    PROBLEMS.labels(process_name(), "internal_error").inc()
    return render(
        Problem(
            type="/docs/problems#internal_error",
            title="Internal error",
            status=500,
            detail="something went wrong on our side; the request id finds it in the logs",
            code="internal_error",
            request_id=_request_id(request),
            trace_id=trace_of(request.scope),
        )
    )


EXCEPTION_HANDLERS: Final[Mapping[type[Exception], Callable[..., Response[bytes]]]] = {
    MemplaneError: _own,
    HTTPException: _http,
    Exception: _unexpected,
}

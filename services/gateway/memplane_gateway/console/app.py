"""Puts the console together: one router, with its sessions, its error pages and its files."""

from typing import Any, Final

from litestar import Request, Response, Router, get
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from memplane_core.domain.errors import MemplaneError, NotFound
from memplane_core.observability.logs import get_logger
from memplane_core.web.middleware import PUBLIC
from memplane_core.web.request import ServiceRequest
from memplane_gateway.console.audit import AUDIT_PAGES
from memplane_gateway.console.calls import Refused
from memplane_gateway.console.desk import Desk
from memplane_gateway.console.explorer import EXPLORER_ROUTES
from memplane_gateway.console.jobs import JOB_PAGES
from memplane_gateway.console.keys import KEY_PAGES
from memplane_gateway.console.limits import LIMIT_PAGES
from memplane_gateway.console.overview import OVERVIEW_ROUTES
from memplane_gateway.console.policy import POLICY_PAGES
from memplane_gateway.console.pulse import Pulse
from memplane_gateway.console.rendering import ASSETS, ROOT, STATIC, render
from memplane_gateway.console.sign_in import SIGN_IN_ROUTES, to_sign_in
from memplane_gateway.console.system import SYSTEM_PAGES
from memplane_gateway.console.tenants import TENANT_PAGES
from memplane_gateway.console.visits import COOKIE, MemoriesClosed, SignedOut, StaleForm, Visit
from memplane_gateway.console.why import WHY_PAGES

_log = get_logger(__name__)

_PAGES: Final = (
    *SIGN_IN_ROUTES,
    *OVERVIEW_ROUTES,
    *EXPLORER_ROUTES,
    *WHY_PAGES,
    *JOB_PAGES,
    *POLICY_PAGES,
    *KEY_PAGES,
    *LIMIT_PAGES,
    *AUDIT_PAGES,
    *TENANT_PAGES,
    *SYSTEM_PAGES,
)
_FILE_HEADERS: Final = {"Cache-Control": "public, max-age=3600", "X-Content-Type-Options": "nosniff"}


def console(desk: Desk, pulse: Pulse) -> Router:
    """The pages below `/console`.

    Args:
        desk: Who is signed in.
        pulse: What the charts show.
    """

    def the_desk() -> Desk:
        return desk

    def the_pulse() -> Pulse:
        return pulse

    return Router(
        ROOT,
        route_handlers=[_asset, *_PAGES],
        dependencies={
            "desk": Provide(the_desk, sync_to_thread=False),
            "pulse": Provide(the_pulse, sync_to_thread=False),
            "visit": Provide(_visit),
        },
        exception_handlers={
            SignedOut: _to_sign_in,
            MemoriesClosed: _closed,
            StaleForm: _stale,
            Refused: _refused,
            MemplaneError: _wrong,
            HTTPException: _wrong,
            Exception: _broken,
        },
        opt={PUBLIC: True},
        include_in_schema=False,
    )


_FILES: Final = {name: (STATIC / name).read_bytes() for name in ASSETS}


@get("/assets/{name:str}", sync_to_thread=False)
def _asset(name: FromPath[str]) -> Response[bytes]:
    if name not in _FILES:
        raise NotFound("there is no such file")
    return Response(_FILES[name], media_type=ASSETS[name], headers=_FILE_HEADERS)


async def _visit(request: ServiceRequest, desk: NamedDependency[Desk]) -> Visit:
    token = request.cookies.get(COOKIE, "")
    session = await desk.sessions.find(token) if token else None
    if session is None:
        raise SignedOut
    return Visit(request, desk.sessions, token=token, session=session)


def _to_sign_in(request: Request[Any, Any, Any], _: Exception) -> Response[bytes]:
    assert isinstance(request, ServiceRequest)
    return to_sign_in(request)


def _closed(request: Request[Any, Any, Any], _: Exception) -> Response[bytes]:
    """An operator asked for something of memories that are closed, or closed again by now."""
    return _problem(request, 409, "Open this tenant's memories first.")


def _stale(request: Request[Any, Any, Any], _: Exception) -> Response[bytes]:
    return _problem(request, 400, "This form was not made for this session. Load the page again, then try once more.")


def _refused(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    assert isinstance(error, Refused)
    return _problem(request, error.status, error.detail)


def _wrong(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    status = error.status if isinstance(error, MemplaneError) else getattr(error, "status_code", 500)
    return _problem(request, status, str(getattr(error, "detail", "")) or "That did not work.")


def _broken(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    _log.error("a page of the console broke", exc_info=error)
    return _problem(request, 500, "The console made a mistake. Its log says which.")


def _problem(request: Request[Any, Any, Any], status: int, detail: str) -> Response[bytes]:
    """What went wrong: a line for the page that is open, or a page."""
    request_id = str(request.scope["state"].get("request_id", ""))
    values: dict[str, Any] = {"code": status, "detail": detail, "request_id": request_id}
    if "hx-request" not in request.headers:
        return render("problem.html", status=status, title="That did not work", **values)
    # Told as a success, or browsers would write errors into their consoles for what a person has mistyped.
    answer = render("problem_line.html", **values)
    answer.headers |= {"HX-Retarget": "#notice", "HX-Reswap": "innerHTML", "HX-Reselect": ".note"}
    return answer

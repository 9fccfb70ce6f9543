"""Signing in with a key, and out again."""

import secrets
import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import structlog
from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.types import ControllerRouterHandler

from memplane_core.contracts.limits import Rate
from memplane_core.web.request import ServiceRequest
from memplane_gateway.console.calls import Refused, call
from memplane_gateway.console.desk import Desk
from memplane_gateway.console.rendering import ROOT, go_to, render
from memplane_gateway.console.sessions import Session
from memplane_gateway.console.visits import (
    COOKIE,
    SignedOut,
    StaleForm,
    Visit,
    is_https,
    read_form,
    session_cookie,
)
from memplane_gateway.whoami import Caller

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

FORM_COOKIE: Final = "memplane_console_form"
PATH: Final = f"{ROOT}/sign-in"

_ONE_S: Final = Rate(requests=10, seconds=60)
"""Tries of one address."""

_ALL: Final = Rate(requests=300, seconds=60)
"""Tries of all together."""

_LONGEST_KEY: Final = 512


@get("/sign-in")
async def sign_in_page(request: ServiceRequest, desk: NamedDependency[Desk]) -> Response[bytes]:
    """The form."""
    return form_page(request, desk)


def form_page(request: ServiceRequest, desk: Desk, *, fault: str | None = None, status: int = 200) -> Response[bytes]:
    """The form, stamped for this browser."""
    token = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)
    cookie = Cookie(
        FORM_COOKIE, value=token, path=ROOT, max_age=3600, httponly=True, samesite="strict", secure=is_https(request)
    )
    stamp = desk.sessions.stamp(token)
    return render("sign_in.html", status=status, cookies=[cookie], title="Sign in", stamp=stamp, fault=fault)


@post("/sign-in", status_code=200, request_max_body_size=16 * 1024)
async def sign_in(request: ServiceRequest, desk: NamedDependency[Desk]) -> Response[bytes]:
    """Begin a session for the holder of a key."""
    if not await desk.admits(request, each=_ONE_S, all_=_ALL):
        return form_page(request, desk, fault="Too many tries. Wait a minute, then try again.", status=429)
    try:
        form = await read_form(request, desk.sessions, token=request.cookies.get(FORM_COOKIE, ""))
    except StaleForm:
        return form_page(request, desk, fault="That form was too old. Try again.", status=400)
    key = form.text("key") or ""
    session = await _session_of(request, key) if key.isascii() and len(key) <= _LONGEST_KEY else None
    if session is None:
        return form_page(request, desk, fault="That is no key that opens anything here.", status=401)
    token = await desk.sessions.begin(session)
    _log.info("signed in to the console", key_id=session.key_id)
    return go_to(ROOT, cookies=[session_cookie(request, token)])


async def _session_of(request: ServiceRequest, key: str) -> Session | None:
    """What a key opens; None where it is no key of ours."""
    try:
        answer = await call(request, key, method="GET", path="/v1/whoami")
    except Refused as refused:
        if refused.status != 401:
            raise
    else:
        return _of_tenant(key, answer.read(Caller), began=time.time())
    try:
        answer = await call(request, key, method="GET", path="/admin/v1/tenants", query={"limit": 1})
    except Refused as refused:
        if refused.status != 401:
            raise
        return None
    return _of_operator(key, answer.operator, began=time.time())


def _of_tenant(key: str, caller: Caller, *, began: float) -> Session:
    return Session(
        key=key,
        operator="",
        tenant=UUID(int=caller.tenant_id.int),
        tenant_name=caller.tenant_name,
        key_id=caller.key_id,
        key_name=caller.key_name,
        scopes=list(caller.scopes),
        began=began,
    )


def _of_operator(key: str, operator: str, *, began: float) -> Session:
    return Session(
        key=key,
        operator=operator,
        tenant=None,
        tenant_name="",
        key_id=operator,
        key_name=f"{operator} key",
        scopes=[],
        began=began,
    )


@post("/sign-out", status_code=200)
async def sign_out(visit: NamedDependency[Visit]) -> Response[bytes]:
    """End a session, and the keys that were made for it."""
    await visit.form()
    for tenant, lent in visit.session.lent.items():
        try:
            await visit.send("DELETE", f"/admin/v1/tenants/{tenant}/keys/{lent.id}")
        except (Refused, SignedOut) as error:  # it ends within the hour by itself
            _log.warning("a key of the console was not revoked", key_id=lent.id, reason=type(error).__name__)
    await visit.end()
    return go_to(PATH, htmx=visit.htmx, cookies=[session_cookie(visit.request, "", max_age=0)])


def to_sign_in(request: ServiceRequest) -> Response[bytes]:
    """Where whoever has no session is sent."""
    gone: list[Cookie] = [session_cookie(request, "", max_age=0)] if COOKIE in request.cookies else []
    return go_to(PATH, htmx="hx-request" in request.headers, cookies=gone)


SIGN_IN_ROUTES: Final[Sequence[ControllerRouterHandler]] = (sign_in_page, sign_in, sign_out)

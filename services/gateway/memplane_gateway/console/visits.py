"""One request for a page, by somebody who is signed in."""

import hmac
import math
import re
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import msgspec
from litestar import Response
from litestar.datastructures import Cookie

from memplane_core.domain.errors import NotFound
from memplane_core.web.request import ServiceRequest
from memplane_gateway.console.calls import Answer, Refused, call
from memplane_gateway.console.rendering import ROOT, go_to, render
from memplane_gateway.console.sessions import LONGEST_S, LentKey, Session, Sessions

T = TypeVar("T")

_NUMBER: Final = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?(e[+-]?[0-9]{1,4})?", re.IGNORECASE)

COOKIE: Final = "memplane_console"


class SignedOut(Exception):
    """There is no session, or its key is not valid any more."""


class StaleForm(Exception):
    """A form came without the stamp of this session, or from another site."""


class MemoriesClosed(Exception):
    """The session has no key for a tenant's memories; an admin can have one made."""


class Form(msgspec.Struct, frozen=True):
    """What was filled in, with spaces at both ends taken off; fields that were left empty are not there."""

    fields: Mapping[str, list[str]]

    def text(self, name: str) -> str | None:
        """The value of a field."""
        values = self.fields.get(name)
        return values[0] if values else None

    def texts(self, name: str) -> list[str]:
        """All values of a field."""
        return list(self.fields.get(name, ()))

    def on(self, name: str) -> bool:
        """Whether a box is ticked."""
        return name in self.fields

    def number(self, name: str) -> float | int | str | None:
        """A number where it is one; else the text, so that the route says what is wrong with it."""
        return as_number(self.text(name))


def as_number(text: str | None) -> float | int | str | None:
    """A number where `text` is one; else the text itself."""
    if text is None or not _NUMBER.fullmatch(text):
        return text
    number = float(text)
    if not math.isfinite(number):
        return text
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 19 else number  # more digits than JSON gets


def is_https(request: ServiceRequest) -> bool:
    """Whether the browser speaks TLS, to us or to a proxy: a lie here hardens the liar's own cookie and no more."""
    return request.scope["scheme"] == "https" or request.headers.get("x-forwarded-proto", "").lower() == "https"


def session_cookie(request: ServiceRequest, token: str, *, max_age: int = LONGEST_S) -> Cookie:
    """The cookie that carries a session: for this path alone, out of reach of scripts and other sites."""
    return Cookie(
        COOKIE, value=token, path=ROOT, max_age=max_age, httponly=True, samesite="strict", secure=is_https(request)
    )


async def read_form(request: ServiceRequest, sessions: Sessions, *, token: str) -> Form:
    """The form of a request. Raises StaleForm where it was not made for the holder of `token`."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise StaleForm
    fields: dict[str, list[str]] = {}
    for name, value in (await request.form()).multi_items():
        if isinstance(value, str) and value.strip():
            fields.setdefault(name, []).append(value.strip())
    stamp = fields.pop("stamp", [""])[0]
    if not token or not hmac.compare_digest(stamp.encode(), sessions.stamp(token).encode()):
        raise StaleForm
    return Form(fields)


class Visit:
    """A request for a page together with the session that it belongs to."""

    def __init__(self, request: ServiceRequest, sessions: Sessions, *, token: str, session: Session) -> None:
        self.request = request
        self.session = session
        self._sessions = sessions
        self._token = token

    @property
    def htmx(self) -> bool:
        """Whether the page's script asks, which puts a part of the answer into the page that is open."""
        return "hx-request" in self.request.headers

    async def form(self) -> Form:
        """What was filled in. Raises StaleForm."""
        return await read_form(self.request, self._sessions, token=self._token)

    async def ask(self, path: str, *, key: str | None = None, query: Mapping[str, Any] | None = None) -> Answer:
        """What a route that only reads answers. Raises SignedOut, Refused."""
        return await self.send("GET", path, key=key, query=query)

    async def send(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        repeat_key: str | None = None,
    ) -> Answer:
        """What a route answers.

        Raises:
            SignedOut: The key of the session is not valid any more.
            Refused: The answer is a problem.
        """
        try:
            return await call(
                self.request,
                key or self.session.key,
                method=method,
                path=path,
                query=query,
                body=body,
                repeat_key=repeat_key,
            )
        except Refused as refused:
            if refused.status == 401:
                raise (SignedOut if key in (None, self.session.key) else MemoriesClosed) from None
            raise

    def base(self, tenant: UUID) -> str:
        """Where the routes about a tenant begin for this session. Raises NotFound for somebody else's tenant."""
        if self.session.operator:
            return f"/admin/v1/tenants/{tenant}"
        if tenant != self.session.tenant:
            raise NotFound("there is no such tenant")
        return "/v1"

    def memory_key(self, tenant: UUID) -> str:
        """The key that this session opens a tenant's memories with.

        Raises:
            NotFound: It is somebody else's tenant.
            MemoriesClosed: An operator who has none for this tenant yet.
        """
        self.base(tenant)
        if not self.session.operator:
            return self.session.key
        lent = self.session.lent.get(str(tenant))
        if lent is None or lent.until <= time.time():
            raise MemoriesClosed
        return lent.text

    async def lend(self, tenant: UUID, lent: LentKey | None) -> None:
        """Keep a key for a tenant's memories with the session, or keep none any more. Raises Unavailable."""
        keys = {name: key for name, key in self.session.lent.items() if name != str(tenant)}
        if lent is not None:
            keys[str(tenant)] = lent
        self.session = msgspec.structs.replace(self.session, lent=keys)
        await self._sessions.keep(self._token, self.session)

    async def become(self, key_id: str, text: str) -> None:
        """Go on with the key that replaced the session's own, which may be invalid by now. Raises Unavailable."""
        self.session = msgspec.structs.replace(self.session, key=text, key_id=key_id)
        await self._sessions.keep(self._token, self.session)

    async def end(self) -> None:
        """End the session. Raises Unavailable."""
        await self._sessions.end(self._token)

    async def page(
        self, template: str, *, title: str, tenant: UUID | None = None, status: int = 200, **values: Any
    ) -> Response[bytes]:
        """A page of the console.

        Args:
            template: Which.
            title: Of the page.
            tenant: Whom it is about; the navigation then leads to all that is theirs.
            status: Of the answer.
            values: For the template.
        """
        return render(
            template,
            status=status,
            title=title,
            here=self.request.url.path,
            session=self.session,
            tenant=tenant,
            tenant_name="" if tenant is None else await self._name_of(tenant),
            at=None if tenant is None else f"{ROOT}/t/{tenant}",
            stamp=self._sessions.stamp(self._token),
            once=str(uuid4()),
            **{"notice": None, "fault": None, **values},
        )

    def go(self, path: str) -> Response[bytes]:
        """Have the browser ask for another page of the console."""
        return go_to(ROOT + path, htmx=self.htmx)

    async def _name_of(self, tenant: UUID) -> str:
        if not self.session.operator:
            return self.session.tenant_name
        return str((await self.ask(f"/admin/v1/tenants/{tenant}")).read(dict[str, Any])["name"])

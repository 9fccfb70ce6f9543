"""The documentation that the service serves about itself. Nothing on its pages comes from another host."""

import html
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from memplane_core.domain.errors import NotFound
from memplane_core.web.middleware import PUBLIC
from memplane_gateway.problems import PROBLEMS

_STATIC: Final = files(__package__ or "memplane_gateway") / "static"
_ASSETS: Final = {"rapidoc-min.js": "text/javascript", "docs.css": "text/css"}
_PAGE_HEADERS: Final = {
    # RapiDoc sets `style` attributes; scripts, connections and pictures come from this service alone.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ASSET_HEADERS: Final = {"Cache-Control": "public, max-age=3600", "X-Content-Type-Options": "nosniff"}


def _read(name: str) -> bytes:
    return (_STATIC / name).read_bytes()


def problems_page() -> str:
    """What each error code means and what to do about it, as HTML with an anchor a code."""
    rows = "\n".join(
        f'<tr id="{problem.code}"><th scope="row"><a href="#{problem.code}"><code>{problem.code}</code></a></th>'
        f"<td>{problem.status}</td><td>{html.escape(problem.meaning)}</td><td>{html.escape(problem.remedy)}</td></tr>"
        for problem in PROBLEMS
    )
    return _read("problems.html").decode().replace("<!-- rows -->", rows)


def docs_routes(document: bytes) -> Sequence[ControllerRouterHandler]:
    """Routes for the pages, their files and the OpenAPI `document`."""
    page, problems, assets = _read("docs.html"), problems_page().encode(), {name: _read(name) for name in _ASSETS}

    @get("/", opt={PUBLIC: True}, include_in_schema=False, sync_to_thread=False)
    def root() -> Redirect:
        return Redirect("/docs")

    @get("/openapi.json", opt={PUBLIC: True}, include_in_schema=False, sync_to_thread=False)
    def openapi() -> Response[bytes]:
        return Response(document, media_type="application/json")

    @get("/docs", opt={PUBLIC: True}, include_in_schema=False, sync_to_thread=False)
    def docs() -> Response[bytes]:
        return Response(page, media_type="text/html", headers=_PAGE_HEADERS)

    @get("/docs/problems", opt={PUBLIC: True}, include_in_schema=False, sync_to_thread=False)
    def docs_problems() -> Response[bytes]:
        return Response(problems, media_type="text/html", headers=_PAGE_HEADERS)

    @get("/docs/assets/{name:str}", opt={PUBLIC: True}, include_in_schema=False, sync_to_thread=False)
    def asset(name: FromPath[str]) -> Response[bytes]:
        if name not in assets:
            raise NotFound(f"there is no file {name!r}")
        return Response(assets[name], media_type=_ASSETS[name], headers=_ASSET_HEADERS)

    handlers: list[HTTPRouteHandler] = [root, openapi, docs, docs_problems, asset]
    return handlers

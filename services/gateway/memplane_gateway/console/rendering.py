"""Templates as answers, with the headers that keep pages to themselves."""

from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final, cast

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Response
from litestar.datastructures import Cookie
from markupsafe import Markup

ROOT: Final = "/console"

STATIC: Final = files(__package__ or "memplane_gateway.console") / "static"
ASSETS: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "theme.js": "text/javascript",
    "charts.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "uplot.min.js": "text/javascript",
    "uplot.min.css": "text/css",
    "icon.svg": "image/svg+xml",
}

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "HX-Request",
}


def _moment(value: datetime | None, missing: str = "never") -> str:
    """A moment as `<time>`, which the page's script shows in the reader's own zone."""
    if value is None:
        return missing
    utc = value.astimezone(UTC)
    shown = Markup.escape(utc.strftime("%Y-%m-%d %H:%M UTC"))
    return Markup('<time datetime="{}">{}</time>').format(utc.isoformat(), shown)


def number(value: float | None) -> str:
    """A number with its thousands apart, as short as it can be."""
    if value is None:
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{int(value):,}"


def seconds(value: float) -> str:
    """A span of time in the unit that suits it."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,.1f} s" if 0.05 <= value < 10 else f"{value:,.0f} s"


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _words(value: str) -> str:
    """`createKey` and `max_idle_days` as words."""
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in value).replace("_", " ").strip()
    return spaced[:1].upper() + spaced[1:]


def _told(value: Any) -> str:
    """A value out of a JSON object as a person would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_told(item) for item in cast("list[Any]", value))
    return str(value)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("memplane_gateway.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "moment": _moment, "number": number, "seconds": seconds, "pretty": _json,
        "told": _told, "words": _words
    }  # fmt: skip
    environment.filters.update(filters)
    environment.globals.update({"root": ROOT})  # pyright: ignore[reportArgumentType, reportCallIssue] - any value will do
    return environment


_TEMPLATES: Final = _environment()


def render(template: str, *, status: int = 200, cookies: list[Cookie] | None = None, **values: Any) -> Response[bytes]:
    """A page made from a template."""
    text = _TEMPLATES.get_template(template).render(**values)
    return Response(
        text.encode(), status_code=status, media_type="text/html; charset=utf-8", headers=HEADERS, cookies=cookies
    )


def go_to(path: str, *, htmx: bool = False, cookies: list[Cookie] | None = None) -> Response[bytes]:
    """Have the browser ask for another page."""
    headers = {**HEADERS, **({"HX-Redirect": path} if htmx else {"Location": path})}
    return Response(b"", status_code=204 if htmx else 303, headers=headers, cookies=cookies, media_type="text/html")

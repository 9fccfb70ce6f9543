"""What a request has to look like before a route sees it: one reading of its path, query and headers, or none.

Whoever stands in front of a service (a proxy, its access rules, its logs) has read the request too. What two readers
could take for different things is refused here.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from litestar.types import HTTPScope

from memplane_core.domain.errors import Fault, MalformedRequest, MemplaneError, NotFound, UnsupportedMedia

MAX_QUERY_BYTES: Final = 16 * 1024

METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))

_SINGLE: Final = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"transfer-encoding",
        b"x-api-key",
    )
)
"""Headers of which there is one or none."""

_AMBIGUOUS_PATH: Final = re.compile(
    rb"""
    // | \\ | /\.\.?(?=/|$)                    # empty and dot segments, and what some take for a slash
    | %(?![0-9A-Fa-f]{2})                      # no escape at all
    | %(?: [01][0-9A-Fa-f] | 7F | 2F | 5C )    # a control character, a slash, a backslash
    | %(?: 2[DE] | 3\d | [46][1-9A-F] | [57][\dA] | 5F | 7E )  # what needs no escape
    """,
    re.VERBOSE | re.IGNORECASE,
)


def fault_of(scope: HTTPScope) -> MemplaneError | None:
    """What is wrong with the request line and the headers; None where it is nothing."""
    return _path_fault(scope) or _query_fault(scope["query_string"]) or _header_fault(scope)


def _path_fault(scope: HTTPScope) -> MemplaneError | None:
    raw = scope.get("raw_path") or scope["path"].encode()
    return NotFound("there is no such route") if _AMBIGUOUS_PATH.search(raw) else None


def _query_fault(query: bytes) -> MemplaneError | None:
    if len(query) > MAX_QUERY_BYTES:
        return MalformedRequest(f"the query string is longer than {MAX_QUERY_BYTES:,} bytes")
    if b"%" in query:
        try:
            unquote_to_bytes(query).decode()
        except UnicodeDecodeError:
            return MalformedRequest("the query string is not UTF-8")
    return None


def _header_fault(scope: HTTPScope) -> MemplaneError | None:
    names = [name for name, _ in scope["headers"]]
    given = set(names)
    if len(given) < len(names) and (twice := _repeated(names)):
        return _malformed(twice, "is given more than once")
    if scope["http_version"] == "1.1" and not dict(scope["headers"]).get(b"host"):
        return _malformed("host", "is required")
    if b"transfer-encoding" in given or b"content-encoding" in given:
        return _coding_fault(dict(scope["headers"]))
    return None


def _coding_fault(headers: dict[bytes, bytes]) -> MemplaneError | None:
    if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        return _malformed("transfer-encoding", "must be chunked where it is given")
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        return UnsupportedMedia("bodies are taken as they are: Content-Encoding is not supported")
    return None


def _repeated(names: Iterable[bytes]) -> str | None:
    seen: set[bytes] = set()
    for name in names:
        if name in seen and name in _SINGLE:
            return name.decode("ascii")
        seen.add(name)
    return None


def _malformed(header: str, detail: str) -> MalformedRequest:
    name = header.title()
    return MalformedRequest(f"{name}: {detail}", faults=[Fault(name, detail)])


def check_json(content_type: str | None) -> None:
    """Raise UnsupportedMedia unless a body of that type is JSON in UTF-8."""
    media, _, parameters = (content_type or "").partition(";")
    media = media.strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise UnsupportedMedia("the body must be JSON: send it with `Content-Type: application/json`")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8"):
            raise UnsupportedMedia("JSON is UTF-8: leave charset out")

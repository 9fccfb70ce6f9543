"""The headers that a memory route reads and writes."""

import re
from typing import Final

from memplane_core.domain.errors import invalid
from memplane_core.web.request import ServiceRequest

_ETAG: Final = re.compile(r'(?:W/)?"(\d{1,9})"')


def etag_of(version: int) -> str:
    """A memory's version as an ETag."""
    return f'"{version}"'


def if_match_of(request: ServiceRequest) -> int | None:
    """The version that `If-Match` asks for; None where any will do.

    Raises:
        InvalidRequest: It is not an ETag of ours.
    """
    header = request.headers.get("if-match")
    if header is None or header.strip() == "*":
        return None
    match = _ETAG.fullmatch(header.strip())
    if match is None:
        raise invalid("If-Match", f'must be an ETag as a memory carries it, like "3", not {header!r}')
    return int(match[1])

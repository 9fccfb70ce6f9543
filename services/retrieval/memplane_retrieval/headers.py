"""The headers that a memory route reads and writes."""

import hashlib
import re
from typing import Final

import msgspec

from memplane_core.contracts.checks import text_faults
from memplane_core.domain.errors import Fault, InvalidRequest, invalid
from memplane_core.storage.idempotency import Fingerprint
from memplane_core.web.request import ServiceRequest

_KEY_BYTES: Final = 255
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


async def fingerprint_of(request: ServiceRequest, *, route: str) -> Fingerprint | None:
    """What a repeat of this request is known by; None where it carries no Idempotency-Key.

    Raises:
        InvalidRequest: The key is empty or too long.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    faults = text_faults(key, "Idempotency-Key", _KEY_BYTES)
    if not key.strip():
        faults = [Fault("Idempotency-Key", "must not be empty")]
    if faults:
        raise InvalidRequest(f"{faults[0].pointer}: {faults[0].detail}", faults=faults)
    bind = msgspec.json.encode(request.principal.bind, order="sorted") if request.principal.bind else b""
    if bind:  # keys of the same bind know each other's requests, those of another never
        key = f"{hashlib.sha256(bind + key.encode()).hexdigest()} bound"
    return Fingerprint(key, route, hashlib.sha256(bind + await request.body()).digest())

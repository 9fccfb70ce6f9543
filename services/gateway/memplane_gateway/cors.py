"""Which web pages may call the gateway from a browser."""

from collections.abc import Sequence
from typing import Final

from litestar.config.cors import CORSConfig

_SENT: Final = ["Authorization", "Content-Type", "Idempotency-Key", "If-Match", "X-API-Key", "X-Request-Id"]
_SHOWN: Final = [
    "ETag",
    "Idempotency-Replayed",
    "Location",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "X-Request-Id",
]


def cors_of(origins: Sequence[str]) -> CORSConfig | None:
    """Pages of these origins may call, with a key and without cookies; None where there are none."""
    if not origins:
        return None
    return CORSConfig(
        # `*` inside of an origin would be a pattern; alone it is everybody.
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=_SENT,
        expose_headers=_SHOWN,
    )

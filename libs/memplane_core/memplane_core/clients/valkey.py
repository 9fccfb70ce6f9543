"""Valkey as an event loop talks to it."""

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


def valkey_client(url: str, *, timeout_s: float, tls: Mapping[str, Any] | None = None) -> Redis:
    """A client for one event loop, which decodes nothing and gives up after one try.

    Args:
        url: Of the server.
        timeout_s: Longest wait for a connection, and for an answer.
        tls: What the client is told of TLS besides the URL.
    """
    return Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        url,
        protocol=3,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        **(tls or {}),
    )

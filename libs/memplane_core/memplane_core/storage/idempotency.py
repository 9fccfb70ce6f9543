"""Requests that were answered before, remembered in the transaction that did their work. Never content: only ids."""

from typing import Final, Literal, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from memplane_core.domain.errors import IdempotencyInFlight, IdempotencyMismatch
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection

_WAIT_MS = 5000
"""How long a request waits for its twin that is being worked on."""


class WriteOutcome(msgspec.Struct, frozen=True):
    """What became of one memory of a write."""

    id: UUID
    status: Literal[200, 201, 202]
    deduplicated: bool


class Effect(msgspec.Struct, frozen=True):
    """What a request did that is about one thing: its id tells all that the answer needs."""

    id: str


T = TypeVar("T")

OUTCOMES: Final = list[WriteOutcome]
EFFECTS: Final = list[Effect]


class Fingerprint(msgspec.Struct, frozen=True):
    """What a repeated request must share with the first one.

    Attributes:
        key: The `Idempotency-Key`, apart for callers who must not know of each other's requests.
        route: Method and path, with the ids in it.
        body_hash: SHA-256 of the body as it came.
    """

    key: str
    route: str
    body_hash: bytes


async def recall(tenant: TenantId, connection: Connection, fingerprint: Fingerprint, *, kind: type[T]) -> T | None:
    """What the first request of this key did, read as a `kind`; None where it is the first.

    Raises:
        IdempotencyMismatch: The key came with another body or on another route.
    """
    row = await connection.fetchrow(
        "SELECT route, body_hash, outcome FROM idempotency WHERE tenant_id = $1 AND key = $2", tenant, fingerprint.key
    )
    if row is None:
        return None
    if (row["route"], row["body_hash"]) != (fingerprint.route, fingerprint.body_hash):
        raise IdempotencyMismatch("this Idempotency-Key came before with another body or on another route")
    return msgspec.convert(row["outcome"], kind)


async def claim(tenant: TenantId, connection: Connection, fingerprint: Fingerprint, *, kind: type[T]) -> T | None:
    """Take the key for this transaction, or learn what its first request did, read as a `kind`.

    A twin that is being worked on holds the key until its transaction ends; this waits a little for it.

    Raises:
        IdempotencyInFlight: The twin took longer than that.
        IdempotencyMismatch: The key came with another body or on another route.
    """
    await connection.execute(f"SET LOCAL lock_timeout = {_WAIT_MS}")
    try:
        claimed = await connection.fetchval(
            """
            INSERT INTO idempotency (tenant_id, key, route, body_hash) VALUES ($1, $2, $3, $4)
            ON CONFLICT DO NOTHING RETURNING true
            """,
            tenant,
            fingerprint.key,
            fingerprint.route,
            fingerprint.body_hash,
        )
    except asyncpg.LockNotAvailableError as error:
        raise IdempotencyInFlight(
            "a request with this Idempotency-Key is being worked on; try again", retry_after=2
        ) from error
    await connection.execute("SET LOCAL lock_timeout = 0")
    return None if claimed else await recall(tenant, connection, fingerprint, kind=kind)


async def settle(tenant: TenantId, connection: Connection, fingerprint: Fingerprint, *, outcome: object) -> None:
    """Keep what this request did, for the ones that repeat it: ids and statuses, never what somebody wrote."""
    await connection.execute(
        "UPDATE idempotency SET outcome = $3 WHERE tenant_id = $1 AND key = $2", tenant, fingerprint.key, outcome
    )

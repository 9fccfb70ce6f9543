"""Requests that carry an `Idempotency-Key`: what they are known by, and doing what they ask for once.

A write route of a service that has the database calls `once` with what it does inside the transaction. One that takes
more than one transaction asks `storage.idempotency` itself.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from memplane_core.contracts.checks import text_faults
from memplane_core.domain.errors import Fault, InvalidRequest
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import idempotency
from memplane_core.storage.idempotency import Fingerprint
from memplane_core.storage.session import Connection, Database
from memplane_core.web.request import ServiceRequest

REPLAYED: Final = "Idempotency-Replayed"

_KEY_BYTES: Final = 255

T = TypeVar("T")


class Once(msgspec.Struct, Generic[T], frozen=True):
    """What became of a request.

    Attributes:
        outcome: What it did, now or before.
        replayed: It came before, and nothing was done.
    """

    outcome: T
    replayed: bool

    @property
    def headers(self) -> dict[str, str]:
        """What the answer carries."""
        return {REPLAYED: "true"} if self.replayed else {}


async def fingerprint_of(request: ServiceRequest) -> Fingerprint | None:
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
    caller = _caller(request)
    if caller:
        key = f"{hashlib.sha256(caller + key.encode()).hexdigest()} apart"
    return Fingerprint(
        key, f"{request.method} {quote(request.scope['path'])}", hashlib.sha256(caller + await request.body()).digest()
    )


def _caller(request: ServiceRequest) -> bytes:
    """What sets a caller apart from others in the tenant. Keys of the same bind know each other's requests."""
    found = request.scope["state"].get("principal")
    if not isinstance(found, Principal):
        return b"operator"
    return msgspec.json.encode(found.bind, order="sorted") if found.bind else b""


async def once(
    tenant: TenantId,
    database: Database,
    fingerprint: Fingerprint | None,
    *,
    kind: type[T],
    act: Callable[[Connection], Awaitable[T]],
) -> Once[T]:
    """Run `act` in a transaction of the tenant, unless a request of this fingerprint did so before.

    Args:
        tenant: Whose transaction it is.
        database: Where.
        fingerprint: Of the request; None always acts.
        kind: Of what `act` returns: ids and statuses that the answer to a repeat is made from, never content.
        act: What is asked for.

    Raises:
        IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
        MemplaneError: Whatever `act` raises; nothing is remembered then.
    """
    async with database.tenant(tenant) as connection:
        if fingerprint is not None:
            before = await idempotency.claim(tenant, connection, fingerprint, kind=kind)
            if before is not None:
                return Once(before, replayed=True)
        outcome = await act(connection)
        if fingerprint is not None:
            await idempotency.settle(tenant, connection, fingerprint, outcome=outcome)
        return Once(outcome, replayed=False)

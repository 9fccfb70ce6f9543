"""What a write route does with the database: once for each `Idempotency-Key`, and told in the audit with it.

A new route declares `idempotency_key: IdempotencyKey = None` and calls `carry_out`. What it is refused is told by
`Refusals`, for every route that is not about reading or about single memories.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast
from uuid import UUID

import msgspec
import structlog
from litestar.types import Message, Scope

from memplane_core.domain.errors import MemplaneError
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import audit, idempotency
from memplane_core.storage.idempotency import Effect, Fingerprint
from memplane_core.storage.session import Connection, Database
from memplane_core.web.repeats import Once, fingerprint_of, once
from memplane_core.web.request import ServiceRequest
from memplane_gateway.auth import SOURCE

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_READS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_EVERYDAY: Final = ("/v1/memories", "/v1/observations", "/v1/sessions", "/v1/context")
"""What apps ask for all day: that a key is refused it, or a quota is full, would drown the rest."""

Act = Callable[[Connection], Awaitable[Effect]]
"""Does it inside a transaction, and returns the id of what it was done to."""


class Deed(msgspec.Struct, frozen=True):
    """A request as the audit tells of it."""

    actor: str
    action: str
    source: str | None
    request_id: str


def deed_of(scope: Scope) -> Deed:
    """Who asks for what, from where, on a route that was found."""
    state = scope["state"]
    principal = state.get("principal")
    actor = principal.key_id if isinstance(principal, Principal) else str(state.get("operator", ""))
    action = str(getattr(scope.get("route_handler"), "operation_id", None) or scope["path_template"])
    return Deed(actor, action, state.get(SOURCE), str(state["request_id"]))


async def done_before(
    request: ServiceRequest, tenant: TenantId, database: Database, *, key: str | None
) -> Effect | None:
    """What a request of this `Idempotency-Key` did; None where this is the first. For what must be prepared.

    Raises:
        IdempotencyMismatch: It came with another body or on another route.
    """
    fingerprint = None if key is None else await fingerprint_of(request)
    if fingerprint is None:
        return None
    async with database.tenant(tenant) as connection:
        return await idempotency.recall(tenant, connection, fingerprint, kind=Effect)


async def carry_out(
    request: ServiceRequest,
    tenant: TenantId,
    database: Database,
    *,
    key: str | None,
    act: Act,
    details: Mapping[str, Any] | None = None,
    sealed: Callable[[Fingerprint], Fingerprint] | None = None,
) -> Once[Effect]:
    """Do what a request asks for, and tell of it, in one transaction of the tenant.

    Args:
        request: For the audit.
        tenant: Whose it is done to.
        database: Where.
        key: The `Idempotency-Key`, where it came with one.
        act: What is done.
        details: For the audit: ids, names of fields and numbers.
        sealed: Makes of what a repeat is known by something that tells nothing of the request.

    Raises:
        IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
        MemplaneError: Whatever `act` raises.
    """
    deed = deed_of(request.scope)

    async def act_and_tell(connection: Connection) -> Effect:
        effect = await act(connection)
        await tell(connection, deed, tenant=tenant, target=effect.id, details=details)
        return effect

    fingerprint = None if key is None else await fingerprint_of(request)
    if fingerprint is not None and sealed is not None:
        fingerprint = sealed(fingerprint)
    return await once(tenant, database, fingerprint, kind=Effect, act=act_and_tell)


async def tell(
    connection: Connection, deed: Deed, *, tenant: TenantId, target: str, details: Mapping[str, Any] | None = None
) -> None:
    """Tell of something that is done in this transaction of the tenant."""
    await audit.record(
        connection,
        tenant=tenant,
        actor=deed.actor,
        action=deed.action,
        target=target,
        result="done",
        source=deed.source,
        request_id=deed.request_id,
        details=details,
    )


class Refusals:
    """Tells the audit of what a valid key was refused: on the admin routes, a tenant's own, and deletions.

    Args:
        database: Where.
    """

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database

    async def __call__(self, message: Message, scope: Scope) -> None:
        """See one message before it is sent."""
        if message["type"] != "http.response.start" or message["status"] != 403 or not _is_told(scope):
            return
        deed = deed_of(scope)
        if not deed.actor:  # a page of the console: the route that it asked has told already
            return
        tenant = _tenant_of(scope)
        try:
            database = self._database()
            async with database.system() if tenant is None else database.tenant(tenant) as connection:
                await audit.record(
                    connection,
                    tenant=tenant,
                    actor=deed.actor,
                    action=deed.action,
                    target=_target_of(scope),
                    result="refused",
                    source=deed.source,
                    request_id=deed.request_id,
                )
        except MemplaneError as error:  # the caller is refused all the same
            _log.error("refusal not recorded", action=deed.action, actor=deed.actor, reason=error.detail)


def _is_told(scope: Scope) -> bool:
    path, method = str(scope.get("path_template", "")), str(scope.get("method", ""))
    if method in _READS or not path:
        return False
    return method == "DELETE" or not path.startswith(_EVERYDAY)


def _tenant_of(scope: Scope) -> TenantId | None:
    principal = scope["state"].get("principal")
    if isinstance(principal, Principal):
        return principal.tenant
    named = cast("dict[str, object]", scope.get("path_params", {})).get("tenant_id")
    return TenantId(named) if isinstance(named, UUID) else None


def _target_of(scope: Scope) -> str:
    """The last id in the path; `""` where what stands there cannot be one."""
    ids = [str(value) for value in cast("dict[str, object]", scope.get("path_params", {})).values()]
    return ids[-1] if ids and _ID.fullmatch(ids[-1]) else ""

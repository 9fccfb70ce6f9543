"""What is done with a tenant's keys, whoever asks for it: the operator, or the tenant by a key of its own."""

from datetime import UTC, datetime
from typing import Final

import msgspec
from litestar import Response
from msgspec import UNSET

from memplane_core.contracts.admin import Bind, KeyCreate, KeyCreated, KeyPage, KeyRotate, KeyView
from memplane_core.contracts.checks import text_faults
from memplane_core.domain.errors import Conflict, Fault, Forbidden, InvalidRequest, NotFound, invalid
from memplane_core.domain.memory import ENTITY_BYTES
from memplane_core.domain.tenancy import Principal, Scope, TenantId
from memplane_core.security.keys import ID_LENGTH, Keyring
from memplane_core.storage import api_keys
from memplane_core.storage.api_keys import StoredKey
from memplane_core.storage.idempotency import Effect
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.tenants import require_tenant
from memplane_core.web.repeats import Once
from memplane_core.web.request import ServiceRequest
from memplane_gateway.auth import KeyDirectory
from memplane_gateway.deeds import carry_out
from memplane_gateway.tenants import check_name

_OUTLIVES: Final = "a key makes none that lives longer than itself"


class KeyDesk:
    """Makes, lists, replaces and revokes keys.

    Where a tenant's own key asks, it is passed as `by`: no key gives away more than it has.

    Args:
        database: Where keys are kept.
        keyring: Makes them.
        directory: Of this gateway, which takes note of a revoked one at once.
    """

    def __init__(self, database: Database, keyring: Keyring, directory: KeyDirectory) -> None:
        self._database = database
        self._keyring = keyring
        self._directory = directory

    async def create(
        self,
        request: ServiceRequest,
        tenant: TenantId,
        *,
        wanted: KeyCreate,
        by: Principal | None = None,
        repeat_key: str | None,
    ) -> KeyCreated:
        """A new key with its secret.

        Raises:
            InvalidRequest: A field breaks a rule.
            Forbidden: `by` lacks a scope that is asked for, or expires before the new key would.
            NotFound: There is no such tenant.
            Conflict: The request came before: it made a key, whose secret cannot be shown again.
        """
        check_name(wanted.name)
        bind = wanted.bind or Bind()
        if wanted.bind is not None:
            _check_bind(bind)
        expires_at = _expiry(wanted.expires_at)
        scopes = frozenset(wanted.scopes)
        key = self._keyring.issue()
        made: list[StoredKey] = []

        async def create(connection: Connection) -> Effect:
            await require_tenant(tenant, connection)
            until = expires_at
            if by is not None:
                _check_scopes(by, scopes)
                maker = await api_keys.get_api_key(tenant, connection, key_id=by.key_id)
                until = _within(maker, maker.expires_at if wanted.expires_at is None else until)
            stored = await api_keys.create_api_key(
                tenant,
                connection,
                key_id=key.id,
                name=wanted.name,
                digest=key.digest,
                scopes=scopes,
                expires_at=until,
                bind_user_id=bind.user_id,
                bind_agent_id=bind.agent_id,
                made_by=by and by.key_id,
            )
            made.append(stored)
            return Effect(key.id)

        details = {"scopes": sorted(scopes), "bound": wanted.bind is not None}
        done = await carry_out(request, tenant, self._database, key=repeat_key, act=create, details=details)
        return _created(_made(made, done), key.text)

    async def page(self, tenant: TenantId, *, limit: int, cursor: str | None) -> KeyPage:
        """Keys in the order they were made. Raises NotFound where there is no such tenant, InvalidRequest."""
        async with self._database.tenant(tenant) as connection:
            await require_tenant(tenant, connection)
            found = await api_keys.list_api_keys(tenant, connection, after=cursor, limit=limit + 1)
        page = [_view(key) for key in found[:limit]]
        return KeyPage(results=page, next_cursor=page[-1].id if len(found) > limit else None)

    async def rotate(
        self,
        request: ServiceRequest,
        tenant: TenantId,
        key_id: str,
        *,
        how: KeyRotate,
        by: Principal | None = None,
        repeat_key: str | None,
    ) -> KeyCreated:
        """The key that replaces another, with its secret.

        Raises:
            InvalidRequest: A field breaks a rule.
            Forbidden: The key has a scope that `by` lacks, or the new one would outlive it.
            NotFound: The tenant has no such key.
            Conflict: The key is not valid any more, or was replaced before, by this very request perhaps.
        """
        check_key_id(key_id)
        given = None if how.expires_at is UNSET else _expiry(how.expires_at)
        key = self._keyring.issue()
        made: list[StoredKey] = []

        async def replace(connection: Connection) -> Effect:
            old = await api_keys.get_api_key(tenant, connection, key_id=key_id, lock=True)
            expires_at = old.expires_at if how.expires_at is UNSET else given
            if by is not None:
                _check_scopes(by, old.scopes)
                maker = await api_keys.get_api_key(tenant, connection, key_id=by.key_id)
                expires_at = _within(maker, expires_at)
            stored = await api_keys.replace_api_key(
                tenant,
                connection,
                old,
                key_id=key.id,
                digest=key.digest,
                overlap_s=how.overlap_s,
                expires_at=expires_at,
            )
            made.append(stored)
            return Effect(key.id)

        details = {"replaces": key_id, "overlap_s": how.overlap_s}
        done = await carry_out(request, tenant, self._database, key=repeat_key, act=replace, details=details)
        self._directory.forget(key_id)
        return _created(_made(made, done), key.text)

    async def revoke(
        self, request: ServiceRequest, tenant: TenantId, key_id: str, *, repeat_key: str | None
    ) -> Response[None]:
        """Make a key invalid for good. Raises NotFound where the tenant has no such key."""
        check_key_id(key_id)

        async def revoke(connection: Connection) -> Effect:
            await api_keys.revoke_api_key(tenant, connection, key_id=key_id)
            return Effect(key_id)

        done = await carry_out(request, tenant, self._database, key=repeat_key, act=revoke)
        self._directory.forget(key_id)
        return Response(None, status_code=204, headers=done.headers)


def _made(made: list[StoredKey], done: Once[Effect]) -> StoredKey:
    if done.replayed:
        made_before = done.outcome.id
        detail = (
            f"this request made the key {made_before} before, and its secret is shown once: revoke it, and make another"
        )
        raise Conflict(detail, id=made_before)
    return made[0]


def bind_of(user_id: str | None, agent_id: str | None) -> Bind | None:
    """What a key is bound to, as callers see it; None where it is not."""
    return None if user_id is None and agent_id is None else Bind(user_id=user_id, agent_id=agent_id)


def check_key_id(key_id: str) -> None:
    """Raise NotFound for what cannot be the id of a key."""
    if len(key_id) != ID_LENGTH or not key_id.isalnum() or not key_id.isascii():
        raise NotFound("the tenant has no key with this id")


def _check_bind(bind: Bind) -> None:
    faults: list[Fault] = []
    for name in ("user_id", "agent_id"):
        value: str | None = getattr(bind, name)
        if value is not None:
            faults += text_faults(value, f"/bind/{name}", ENTITY_BYTES)
    if bind.user_id is None and bind.agent_id is None:
        faults.append(Fault("/bind", "name a user_id or an agent_id, or leave it out"))
    if faults:
        raise InvalidRequest(f"{faults[0].pointer}: {faults[0].detail}", faults=faults)


def _check_scopes(by: Principal, scopes: frozenset[Scope]) -> None:
    beyond = sorted(scopes - by.scopes)
    if beyond:
        raise Forbidden(f"a key gives no scope that it does not have itself: {', '.join(beyond)}")


def _within(maker: StoredKey, expires_at: datetime | None) -> datetime | None:
    if maker.expires_at is not None and (expires_at is None or expires_at > maker.expires_at):
        raise Forbidden(f"/expires_at: {_OUTLIVES}", faults=[Fault("/expires_at", _OUTLIVES)])
    return expires_at


def _expiry(given: datetime | None) -> datetime | None:
    if given is None:
        return None
    moment = given.replace(tzinfo=UTC) if given.tzinfo is None else given
    if moment <= datetime.now(UTC):
        raise invalid("/expires_at", "must lie in the future")
    return moment


def _view(key: StoredKey) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        scopes=sorted(key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        bind=bind_of(key.bind_user_id, key.bind_agent_id),
        last_used_at=key.last_used_at,
        replaced_by=key.replaced_by,
    )


def _created(stored: StoredKey, secret: str) -> KeyCreated:
    view = _view(stored)
    return KeyCreated(**{name: getattr(view, name) for name in msgspec.structs.asdict(view)}, key=secret)

"""Who is at the door: the holder of an API key, or of the admin key."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final, cast

import msgspec
import structlog
from cachetools import TLRUCache, TTLCache
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPScope, Receive, Scope, Send

from memplane_core.domain.errors import Forbidden, Unauthorized
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.security.keys import Keyring, PresentedKey, parse_key, same_secret
from memplane_core.storage.api_keys import StoredKey
from memplane_core.web.middleware import PUBLIC
from memplane_gateway.key_uses import KeyUses
from memplane_gateway.sources import Network, client_address

SOURCE: Final = "source"
"""Where a request's address is kept in its state."""

_SCHEMES: Final = frozenset(("bearer", "token"))
_ADMIN: Final = "/admin/"
_READS: Final = frozenset(("GET", "HEAD"))
_UNKNOWN_FOR_S: Final = 2.0
_AGAIN_S: Final = 1.0
"""Whose body took longer to come has their key looked at once more: it may have been revoked meanwhile."""

_REFUSAL: Final = "a valid key is required: send it as `Authorization: Bearer <key>`"

FindKey = Callable[[str], Awaitable[StoredKey | None]]
"""Looks a key up by its public id. Raises Unavailable."""


def presented_secret(headers: Headers) -> str:
    """What the caller identifies itself with; `""` where it is nothing that we know.

    That is `Authorization` with the scheme `Bearer` or `Token`, or `X-API-Key`; both only where they say the same.
    """
    authorization, other = headers.get("authorization"), headers.get("x-api-key")
    if authorization is None:
        return (other or "").strip()
    scheme, _, secret = authorization.strip().partition(" ")
    secret = secret.strip()
    if scheme.lower() not in _SCHEMES or (other is not None and other.strip() != secret):
        return ""
    return secret


class _Trusted(msgspec.Struct, frozen=True):
    """A key, and until when nobody is asked about it."""

    key: StoredKey
    until: float


class KeyDirectory:
    """Tells whose a key is, asking the database at most once in a while for each.

    Args:
        keyring: Recognises keys.
        find: Asks the database.
        trust_s: How long an answer holds, from when it was asked for. 0 asks each time.
        clock: Seconds that never go back.
    """

    def __init__(
        self, keyring: Keyring, find: FindKey, *, trust_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keyring = keyring
        self._find = find
        self._trust_s = trust_s
        self._clock = clock
        # Apart, so that a flood of wrong keys cannot push out the right ones. Both are keyed by digest: nothing here
        # could be used as a key.
        self._known: TLRUCache[bytes, _Trusted] = TLRUCache(50_000, lambda _, its, __: its.until, clock)
        self._unknown: TTLCache[bytes, None] = TTLCache(10_000, min(trust_s, _UNKNOWN_FOR_S), clock)
        self._asking: dict[bytes, asyncio.Task[StoredKey | None]] = {}

    async def identify(self, text: str) -> StoredKey:
        """The key that `text` is.

        Raises:
            Unauthorized: It is no key, or not one of ours, or it is revoked or expired. The error never says which.
            Unavailable: The database was needed and is away.
        """
        presented = parse_key(text)
        if presented is None:
            raise Unauthorized(_REFUSAL)
        digest = self._keyring.digest(presented)
        known = self._known.get(digest)
        key = None if known is None else known.key
        if key is None and digest not in self._unknown:
            key = await self._ask_once(presented, digest)
        if key is None or _is_expired(key):
            raise Unauthorized(_REFUSAL)
        return key

    def forget(self, key_id: str) -> None:
        """Ask the database again when the key with that id comes next."""
        for digest in [digest for digest, its in self._known.items() if its.key.id == key_id]:
            self._known.pop(digest, None)

    def forget_tenant(self, tenant: TenantId) -> None:
        """Ask the database again when a key of that tenant comes next."""
        for digest in [digest for digest, its in self._known.items() if its.key.tenant == tenant]:
            self._known.pop(digest, None)

    async def _ask_once(self, presented: PresentedKey, digest: bytes) -> StoredKey | None:
        """Look up, together with all others who ask for the same key at this moment."""
        task = self._asking.get(digest)
        if task is None:
            task = self._asking[digest] = asyncio.create_task(self._ask(presented, digest))
            task.add_done_callback(lambda done: self._asked(digest, done))
        return await asyncio.shield(task)

    def _asked(self, digest: bytes, task: asyncio.Task[StoredKey | None]) -> None:
        self._asking.pop(digest, None)
        if not task.cancelled():
            task.exception()  # seen here even if all who asked have gone

    async def _ask(self, presented: PresentedKey, digest: bytes) -> StoredKey | None:
        until = self._clock() + self._trust_s
        key = await self._find(presented.id)
        genuine = self._keyring.matches(presented, None if key is None else key.digest)
        # One path for all that are refused: a look-up and every pepper's digest, and the same memory of it.
        if key is None or not genuine or key.revoked_at is not None or _is_expired(key):
            self._unknown[digest] = None
            return None
        self._known[digest] = _Trusted(key, until)
        return key


def _is_expired(key: StoredKey) -> bool:
    return key.expires_at is not None and key.expires_at <= datetime.now(UTC)


class DoorAuth(ASGIMiddleware):
    """Lets nobody in without a key: the admin or ops key on routes below `/admin/`, an API key on all others.

    Belongs on the application, not on a router: Litestar copies what hangs on routers, and a copied directory would
    have keys and a database of its own.

    Args:
        directory: Tells whose an API key is.
        uses: Is told of every use of an API key.
        admin_key: Opens the admin routes.
        ops_key: Opens those of them that only read; None where there is no such key.
        proxies: Networks whose `X-Forwarded-For` is believed.
    """

    scopes = (ScopeType.HTTP,)
    exclude_opt_key = PUBLIC

    def __init__(
        self,
        directory: KeyDirectory,
        uses: KeyUses,
        *,
        admin_key: str,
        ops_key: str | None,
        proxies: Sequence[Network] = (),
    ) -> None:
        self._proxies = tuple(proxies)
        self._directory = directory
        self._uses = uses
        self._admin_key = admin_key
        self._ops_key = ops_key or secrets.token_hex()

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Run the request as the key's principal, or as the operator's. Raises Unauthorized, Forbidden."""
        headers = Headers.from_scope(scope)
        secret = presented_secret(headers)
        client = cast("HTTPScope", scope).get("client")
        source = client_address(client and client[0], headers.getall("x-forwarded-for", []), proxies=self._proxies)
        scope["state"][SOURCE] = source
        if scope["path_template"].startswith(_ADMIN):
            operator = scope["state"]["operator"] = self._operator(secret)
            if operator != "admin" and str(cast("HTTPScope", scope)["method"]) not in _READS:
                raise Forbidden("this key can only read")
        else:
            key = await self._directory.identify(secret)
            scope["state"]["principal"] = Principal(
                tenant=key.tenant,
                scopes=key.scopes,
                key_id=key.id,
                request_id=scope["state"]["request_id"],
                bind_user_id=key.bind_user_id,
                bind_agent_id=key.bind_agent_id,
                source=source,
            )
            self._uses.note(key.id)
            structlog.contextvars.bind_contextvars(tenant=str(key.tenant), key_id=key.id)
            receive = self._rechecking(receive, secret)
        await next_app(scope, receive, send)

    def _rechecking(self, receive: Receive, secret: str) -> Receive:
        """`receive`, which raises Unauthorized where the key is no good any more when a slow body has come whole."""
        began = time.monotonic()

        async def rechecked() -> HTTPReceiveMessage:
            message = cast("HTTPReceiveMessage", await receive())
            is_last = message["type"] == "http.request" and not message.get("more_body", False)
            if is_last and time.monotonic() - began > _AGAIN_S:
                await self._directory.identify(secret)
            return message

        return cast("Receive", rechecked)

    def _operator(self, secret: str) -> str:
        """Which of the operator's keys it is."""
        is_admin, is_ops = same_secret(secret, self._admin_key), same_secret(secret, self._ops_key)
        if is_admin:
            return "admin"
        if not is_ops:
            raise Unauthorized(_REFUSAL)
        return "ops"

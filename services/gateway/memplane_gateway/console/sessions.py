"""Who is signed in: kept in Valkey, sealed so that only the cookie of the session opens it."""

import hashlib
import hmac
import secrets
import time
from typing import Final
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.domain.errors import Unavailable

IDLE_S: Final = 3600
"""A session that asked for nothing for so long has ended."""

LONGEST_S: Final = 12 * 3600
"""No session lasts longer, however busy."""

_NONCE: Final = 12


class LentKey(msgspec.Struct, frozen=True):
    """A key that the console made for an operator, to look into one tenant's memories.

    Attributes:
        until: When it ends, in epoch seconds.
    """

    id: str
    text: str
    until: float


class Session(msgspec.Struct, frozen=True):
    """Somebody who is signed in.

    Attributes:
        key: That they signed in with.
        operator: `admin` or `ops`; empty for a tenant's key.
        tenant: Whose key it is; None for an operator's.
        key_name: What the key is called, for the page.
        began: In epoch seconds.
        lent: Keys that were made for this session, by tenant.
    """

    key: str
    operator: str
    tenant: UUID | None
    tenant_name: str
    key_id: str
    key_name: str
    scopes: list[str]
    began: float
    lent: dict[str, LentKey] = {}

    @property
    def changes(self) -> bool:
        """Whether there is anything that this session may change."""
        return self.operator != "ops"


class Sessions:
    """Sessions by their tokens. Only a digest of the token is stored, and what it opens.

    Args:
        redis: Of the cache server; decodes nothing.
        pepper: Without it neither the token nor what is stored is of any use.
    """

    def __init__(self, redis: Redis, pepper: str) -> None:
        self._redis = redis
        self._pepper = pepper.encode()

    async def begin(self, session: Session) -> str:
        """The token of a new session. Raises Unavailable."""
        token = secrets.token_urlsafe(32)
        await self.keep(token, session)
        return token

    async def keep(self, token: str, session: Session) -> None:
        """Put what is known of a session in the place of what was. Raises Unavailable."""
        nonce = secrets.token_bytes(_NONCE)
        sealed = nonce + self._box(token).encrypt(nonce, msgspec.msgpack.encode(session), None)
        try:
            await self._redis.set(self._name(token), sealed, ex=IDLE_S)
        except (RedisError, OSError, TimeoutError) as error:
            raise _away() from error

    async def find(self, token: str) -> Session | None:
        """The session of that token, which goes on for another hour; None where it has ended. Raises Unavailable."""
        try:
            sealed = await self._redis.getex(self._name(token), ex=IDLE_S)
        except (RedisError, OSError, TimeoutError) as error:
            raise _away() from error
        if not isinstance(sealed, bytes):
            return None
        try:
            opened = self._box(token).decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
            session = msgspec.msgpack.decode(opened, type=Session)
        except (InvalidTag, ValueError, msgspec.DecodeError):
            return None
        return session if time.time() - session.began < LONGEST_S else None

    async def end(self, token: str) -> None:
        """Forget a session. Raises Unavailable."""
        try:
            await self._redis.delete(self._name(token))
        except (RedisError, OSError, TimeoutError) as error:
            raise _away() from error

    def stamp(self, token: str) -> str:
        """What a form has to bring along to have been made for the holder of `token`."""
        return hmac.new(self._pepper, b"console form\x00" + token.encode(), hashlib.sha256).hexdigest()

    def _name(self, token: str) -> str:
        return f"mp:console:{hashlib.sha256(token.encode()).hexdigest()}"

    def _box(self, token: str) -> AESGCM:
        return AESGCM(hmac.new(self._pepper, b"console session\x00" + token.encode(), hashlib.sha256).digest())


def _away() -> Unavailable:
    return Unavailable("sessions cannot be read: Valkey does not answer", retry_after=5)

"""Short-lived signed tokens by which services know on whose behalf they are called."""

import hashlib
import time
from typing import Any, Final
from uuid import UUID

import jwt

from memplane_core.domain.errors import Unauthorized
from memplane_core.domain.tenancy import SCOPES, Principal, TenantId

_ALGORITHM: Final = "HS256"
_LIFETIME_S: Final = 60
_LEEWAY_S: Final = 10
_CLAIMS: Final = ("exp", "sub", "scp", "key", "rid", "usr", "agt")


class InternalTokens:
    """Signs and verifies tokens with secrets that all services of an installation share.

    Args:
        secrets: Newest first: it signs. A token of any of them is good.

    Raises:
        ValueError: There is none.
    """

    def __init__(self, *secrets: str) -> None:
        if not secrets or not all(secrets):
            raise ValueError("internal tokens need at least one secret, and none may be empty")
        self._secrets = {_name(secret): secret for secret in secrets}
        self._newest = _name(secrets[0])

    def sign(self, principal: Principal) -> str:
        """A token that lets its bearer act as `principal` for a minute."""
        claims: dict[str, object] = {
            "sub": str(principal.tenant),
            "scp": sorted(principal.scopes),
            "key": principal.key_id,
            "rid": principal.request_id,
            "usr": principal.bind_user_id or "",
            "agt": principal.bind_agent_id or "",
            "src": principal.source or "",
            "exp": int(time.time()) + _LIFETIME_S,
        }
        return jwt.encode(claims, self._secrets[self._newest], algorithm=_ALGORITHM, headers={"kid": self._newest})

    def verify(self, token: str) -> Principal:
        """Whom the token speaks for. Raises Unauthorized for one that is forged, expired or incomplete."""
        try:
            try:
                claims = _claims(token, self._secrets[self._newest])
            except jwt.InvalidSignatureError:  # to read the name of the secret first takes as long as this does
                claims = _claims(token, self._secrets[jwt.get_unverified_header(token)["kid"]])
            return Principal(
                tenant=TenantId(UUID(claims["sub"])),
                scopes=frozenset(scope for scope in SCOPES if scope in claims["scp"]),
                key_id=claims["key"],
                request_id=claims["rid"],
                bind_user_id=claims["usr"] or None,
                bind_agent_id=claims["agt"] or None,
                source=claims.get("src") or None,
            )
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            raise Unauthorized("the internal token is missing or not valid") from None


def _claims(token: str, secret: str) -> dict[str, Any]:
    return jwt.decode(token, secret, algorithms=[_ALGORITHM], leeway=_LEEWAY_S, options={"require": list(_CLAIMS)})


def bearer(header: str | None) -> str:
    """The token of an `Authorization: Bearer` header; `""` where there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _name(secret: str) -> str:
    """What a secret is called in tokens; it cannot be told from that, being long and random."""
    return hashlib.sha256(b"memplane internal secret\x00" + secret.encode()).hexdigest()[:16]

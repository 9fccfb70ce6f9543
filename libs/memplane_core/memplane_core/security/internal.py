"""Short-lived signed tokens by which services know on whose behalf they are called."""

import time
from uuid import UUID

import jwt

from memplane_core.domain.errors import Unauthorized
from memplane_core.domain.tenancy import SCOPES, Principal, TenantId

_ALGORITHM = "HS256"
_LIFETIME_S = 60
_LEEWAY_S = 10


class InternalTokens:
    """Signs and verifies tokens with a secret that all services of an installation share."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def sign(self, principal: Principal) -> str:
        """A token that lets its bearer act as `principal` for a minute."""
        claims: dict[str, object] = {
            "sub": str(principal.tenant),
            "scp": sorted(principal.scopes),
            "kid": principal.key_id,
            "rid": principal.request_id,
            "usr": principal.bind_user_id or "",
            "agt": principal.bind_agent_id or "",
            "exp": int(time.time()) + _LIFETIME_S,
        }
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def verify(self, token: str) -> Principal:
        """Whom the token speaks for. Raises Unauthorized for one that is forged, expired or incomplete."""
        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=[_ALGORITHM],
                leeway=_LEEWAY_S,
                options={"require": ["exp", "sub", "scp", "kid", "rid", "usr", "agt"]},
            )
            return Principal(
                tenant=TenantId(UUID(claims["sub"])),
                scopes=frozenset(scope for scope in SCOPES if scope in claims["scp"]),
                key_id=claims["kid"],
                request_id=claims["rid"],
                bind_user_id=claims["usr"] or None,
                bind_agent_id=claims["agt"] or None,
            )
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            raise Unauthorized("the internal token is missing or not valid") from None


def bearer(header: str | None) -> str:
    """The token of an `Authorization: Bearer` header; `""` where there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""

"""Where a round over all tenants stopped, so that the next one goes on there."""

from typing import Final, cast
from uuid import UUID

from redis.asyncio import Redis

from memplane_core.domain.tenancy import TenantId

_FORGOTTEN_AFTER_S: Final = 24 * 3600


class TenantCursor:
    """The last tenant that was looked at.

    Args:
        client: Of the broker, which gives bytes.
        key: Where the place is kept, for a day.
    """

    def __init__(self, client: Redis, key: str) -> None:
        self._client = client
        self._key = key

    async def place(self) -> TenantId | None:
        """The tenant behind which to go on; None from the first one on."""
        found = cast("bytes | None", await self._client.get(self._key))
        return TenantId(UUID(bytes=found)) if found else None

    async def remember(self, after: TenantId | None) -> None:
        """Go on behind `after` next time; None where the round is done."""
        if after is None:
            await self._client.delete(self._key)
        else:
            await self._client.set(self._key, after.bytes, ex=_FORGOTTEN_AFTER_S)

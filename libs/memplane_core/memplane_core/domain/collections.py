"""What the index holds as a whole: whose collections there are, who uses them, and all of their keys."""

import re
import threading
import time
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.domain.index import IndexKey
from memplane_core.domain.tenancy import TenantId

_NAME: Final = re.compile(r"mp_([0-9a-f]{32})_g([1-9][0-9]{0,17})")


class CollectionName(msgspec.Struct, frozen=True, order=True):
    """Names a tenant's collection where its generation may not be known any more.

    Attributes:
        number: Of the generation.
    """

    tenant: TenantId
    number: int

    @property
    def collection(self) -> str:
        """As `Generation.collection`."""
        return f"mp_{self.tenant.hex}_g{self.number}"

    @classmethod
    def parse(cls, text: str) -> "CollectionName | None":
        """The name that `text` is; None where it is not one of ours."""
        match = _NAME.fullmatch(text)
        return match and cls(TenantId(UUID(hex=match[1])), int(match[2]))


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a collection's keys.

    Attributes:
        keys: All keys of the stretch, in the order of their texts. It may be empty without being the last.
        until: Where the stretch ends, and the next begins; None for the last.
    """

    keys: list[IndexKey]
    until: str | None


class Uses:
    """When collections were last searched or written by this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, float] = {}

    def note(self, collection: str) -> None:
        """It is being used now."""
        self._used[collection] = time.time()

    def take(self) -> dict[str, float]:
        """The time, in epoch seconds, of each collection's last use since this was last asked."""
        with self._lock:
            taken, self._used = self._used, {}
        return taken

    def put_back(self, taken: dict[str, float]) -> None:
        """What was taken could not be told to others: it will be taken again, unless there is something newer."""
        with self._lock:
            self._used = taken | self._used

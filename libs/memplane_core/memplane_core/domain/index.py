"""What the vector index is told and what it answers. No Milvus types: other indexes may stand behind the same port."""

from typing import Literal
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt

from memplane_core.domain.tenancy import TenantId

FloatArray = npt.NDArray[np.float32]

NEVER = 2**53 - 1
"""`expires_at` of a memory that does not expire, in epoch seconds; exact in every client's number type."""


class IndexKey(msgspec.Struct, frozen=True, order=True):
    """Names one indexed chunk. Never reused: a change of what the index holds takes the next `rev`.

    Attributes:
        memory_id: The memory that the chunk belongs to.
        rev: Revision of the memory's indexed form.
        n: Number of the chunk within it, from 0.
    """

    memory_id: UUID
    rev: int
    n: int

    def __str__(self) -> str:
        return f"{self.memory_id.hex}_{self.rev}_{self.n}"

    @classmethod
    def parse(cls, text: str) -> "IndexKey":
        """Read a key back from its text. Raises ValueError when it is not one."""
        memory, rev, n = text.split("_")
        return cls(UUID(hex=memory), int(rev), int(n))


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One physical collection of a tenant: one embedding model, one schema version.

    Attributes:
        state: `absent` until the collection has been made; `ready` from then on.
    """

    tenant: TenantId
    number: int
    model: str
    dim: int
    index_type: str
    index_params: dict[str, int]
    state: Literal["absent", "ready"]

    @property
    def collection(self) -> str:
        """Name of the collection in Milvus."""
        return f"mp_{self.tenant.hex}_g{self.number}"


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk as the index stores it. A missing string is `""`, a missing expiry `NEVER`; times are epoch seconds."""

    key: IndexKey
    vector: FloatArray
    user_id: str
    agent_id: str
    session_id: str
    memory_type: str
    occurred_at: int
    expires_at: int


class IndexFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The superset of a search's filter that the index applies; None means "any".

    Attributes:
        alive_at: Rows that expire at or before this epoch second are left out.
        occurred_from: Earliest `occurred_at`, inclusive.
        occurred_to: Latest `occurred_at`, inclusive.
    """

    alive_at: int
    user_id: tuple[str, ...] | None = None
    agent_id: tuple[str, ...] | None = None
    session_id: tuple[str, ...] | None = None
    memory_type: tuple[str, ...] | None = None
    occurred_from: int | None = None
    occurred_to: int | None = None

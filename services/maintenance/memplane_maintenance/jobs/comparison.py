"""What Postgres says that the index ought to hold, beside what the index says that it holds."""

from collections.abc import Sequence

import msgspec

from memplane_core.domain.index import Generation, IndexKey
from memplane_core.domain.ports import VectorIndex
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.refill import ExpectedMemory


class Comparison(msgspec.Struct, frozen=True):
    """Of some memories, those that are settled.

    Attributes:
        checked: Keys that were looked for.
        present: Those of them that the index holds.
        lacking: Memories that are not whole in Postgres, or not in the index.
    """

    checked: int
    present: frozenset[IndexKey]
    lacking: list[ExpectedMemory]


async def compare(
    tenant: TenantId, index: VectorIndex, generation: Generation, *, memories: Sequence[ExpectedMemory]
) -> Comparison:
    """Look each key up. Raises IndexUnavailable."""
    settled = [memory for memory in memories if memory.settled]
    expected = [key for memory in settled for key in memory.index_keys()]
    present = await index.keys_present(tenant, generation, expected) if expected else frozenset[IndexKey]()
    lacking = [memory for memory in settled if not memory.whole or not present.issuperset(memory.index_keys())]
    return Comparison(len(expected), present, lacking)

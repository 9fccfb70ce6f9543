"""The memories of a write, one slot for each that will be stored, in the order that every writer takes locks in."""

import hashlib
from collections.abc import Sequence
from datetime import datetime

import msgspec

from memplane_core.contracts.memories import MemoryWrite
from memplane_core.contracts.policy import Policy
from memplane_core.storage.memories import Name, Revision
from memplane_core.storage.new_memories import NewMemory
from memplane_retrieval.changes import folded, new_memory


class Slot(msgspec.Struct, kw_only=True):
    """What one or several items of a request are about.

    Attributes:
        order: Sorts slots the same way in every request, so that two writers never wait for each other in a ring.
        items: Places in the request, first come first.
        writes: What they say, in that order.
        write: What they say together, where nothing is there yet or it has a name.
        fresh: The memory to insert where none is there.
        known: The memory of this name that is there already.
    """

    order: bytes
    items: list[int]
    writes: list[MemoryWrite]
    write: MemoryWrite
    fresh: NewMemory
    known: Revision | None = None

    @property
    def name(self) -> Name | None:
        """What the caller calls it, if anything."""
        if self.write.external_id is None:
            return None
        return Name(self.write.external_id, self.fresh.user_id, self.fresh.agent_id)


def slots_of(writes: Sequence[MemoryWrite], *, now: datetime, policy: Policy, batch: bool) -> list[Slot]:
    """Slots in lock order. Equal items share one, unless they ask to be created all the same.

    Raises:
        InvalidRequest: A time is out of range.
    """
    slots: dict[bytes, Slot] = {}
    for n, write in enumerate(writes):
        fresh = new_memory(write, now=now, policy=policy, pointer=f"/memories/{n}" if batch else "")
        order = fresh.dedup_key or _name_key(write, fresh)
        known = slots.get(order)
        if known is None:
            slots[order] = Slot(order=order, items=[n], writes=[write], write=write, fresh=fresh)
        elif write.on_duplicate == "create" and known.name is None:
            twin = order + n.to_bytes(4, "big")
            alone = msgspec.structs.replace(fresh, dedup_key=None)
            slots[twin] = Slot(order=twin, items=[n], writes=[write], write=write, fresh=alone)
        else:
            known.write = folded(known.write, write)
            again = new_memory(known.write, now=now, policy=policy)
            known.fresh = msgspec.structs.replace(again, id=known.fresh.id)
            known.items.append(n)
            known.writes.append(write)
    return sorted(slots.values(), key=lambda slot: slot.order)


def _name_key(write: MemoryWrite, fresh: NewMemory) -> bytes:
    parts = (fresh.user_id, fresh.agent_id, write.external_id)
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()

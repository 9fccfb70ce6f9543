"""Writes that supersede: what was so until then is closed, and stays."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET

from memplane_core.contracts.memories import MemoryWrite
from memplane_core.domain.binding import sees
from memplane_core.domain.errors import Conflict, Fault, invalid
from memplane_core.domain.memory import Memory, to_utc
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import memories
from memplane_core.storage.memories import Revision
from memplane_core.storage.memory_writes import Change
from memplane_core.storage.session import Connection, Database
from memplane_retrieval.changes import amend

_NONE: Final = "names no memory of the same user and agent"


class Superseding(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a request that supersedes a memory.

    Attributes:
        pointer: Of the item in the body.
        old: The memory that is so no longer.
        at: When that ended, and what is written began.
    """

    pointer: str
    old: UUID
    at: datetime


def superseding(writes: Sequence[MemoryWrite], *, batch: bool) -> dict[int, Superseding]:
    """The items that supersede, by their places; `with_beginnings` has said when each begins.

    Raises:
        InvalidRequest: Two supersede the same memory, or a time is out of range.
    """
    found: dict[int, Superseding] = {}
    for n, write in enumerate(writes):
        if write.supersedes is None:
            continue
        pointer = f"/memories/{n}" if batch else ""
        if any(write.supersedes == its.old for its in found.values()):
            raise invalid(f"{pointer}/supersedes", "is superseded by another memory of this request already")
        assert isinstance(write.valid_from, datetime | float | int)
        at = to_utc(write.valid_from, pointer=f"{pointer}/valid_from")
        found[n] = Superseding(pointer=pointer, old=write.supersedes, at=at)
    return found


async def with_beginnings(
    tenant: TenantId, database: Database, writes: list[MemoryWrite], *, batch: bool
) -> list[MemoryWrite]:
    """`writes`, of which those that supersede say from when on they hold: since they occurred, or else from now on.

    Now is the database's clock, by which searches ask what holds: what is written is found at once, whose clock is
    ahead of whose.

    Raises:
        InvalidRequest: The time at which one occurred is out of range.
    """
    if all(write.supersedes is None for write in writes):
        return writes
    now: datetime | None = None
    given: list[MemoryWrite] = []
    for n, write in enumerate(writes):
        at = write.valid_from
        if write.supersedes is not None and (at is UNSET or at is None):
            if write.occurred_at is not UNSET:
                at = to_utc(write.occurred_at, pointer=f"/memories/{n}/occurred_at" if batch else "/occurred_at")
            else:
                now = now or await _now(tenant, database)
                at = now
        given.append(msgspec.structs.replace(write, valid_from=at))
    return given


async def _now(tenant: TenantId, database: Database) -> datetime:
    async with database.tenant(tenant) as connection:
        return await connection.fetchval("SELECT clock_timestamp()")


async def lock_superseded(
    tenant: TenantId, connection: Connection, wanted: Iterable[Superseding]
) -> dict[UUID, Revision]:
    """Those of the memories to be superseded that are there, locked in the order of their ids."""
    ids = sorted({its.old for its in wanted})
    return await memories.find_by_id(tenant, connection, ids, lock=True) if ids else {}


def closing(
    principal: Principal, its: Superseding, *, old: Revision | None, by: Memory, written: frozenset[UUID]
) -> Change | None:
    """What closes a memory; None where this very one has superseded it before.

    Args:
        principal: Who writes.
        its: What supersedes.
        old: What is superseded, locked.
        by: What is written, as it is stored.
        written: All that the request writes.

    Raises:
        InvalidRequest: There is no such memory of the same user and agent, it is written by this request itself, or it
            begins no earlier than what supersedes it.
        Conflict: It is hidden, it has been superseded by another, or it ended before.
    """
    pointer = f"{its.pointer}/supersedes"
    if old is None or old.expired or not sees(principal, old.memory):
        raise invalid(pointer, _NONE)
    memory = old.memory
    if (memory.user_id, memory.agent_id) != (by.user_id, by.agent_id):
        raise invalid(pointer, _NONE)
    if memory.superseded_by == by.id:
        return None
    if memory.id in written:
        raise invalid(pointer, "is written by this request itself")
    if memory.state != "active":
        raise _conflict(pointer, f"is {memory.state}: restore it first", memory.id)
    if memory.superseded_by is not None:
        raise _conflict(pointer, f"has been superseded by memory {memory.superseded_by}", memory.superseded_by)
    if memory.valid_to is not None and memory.valid_to <= its.at:
        raise _conflict(pointer, f"ended at {memory.valid_to.isoformat()} already", memory.id)
    if memory.valid_from is not None and its.at <= memory.valid_from:
        raise invalid(f"{its.pointer}/valid_from", "must be after the valid_from of what is superseded")
    amended = amend(old, {"valid_to": its.at})
    return msgspec.structs.replace(
        amended.as_change(old, revive=False, text=None),
        after=msgspec.structs.replace(amended.after, superseded_by=by.id),
        changed={"valid_to": memory.valid_to, "superseded_by": None},
        event="superseded",
    )


async def with_places(tenant: TenantId, connection: Connection, changes: Sequence[Change]) -> list[Change]:
    """`changes`, of which none takes the place of an equal memory: what was so for the same time may be there twice."""
    keys = [change.dedup_key for change in changes if change.dedup_key is not None]
    taken = await memories.find_twins(tenant, connection, keys) if keys else {}
    return [
        msgspec.structs.replace(change, dedup_key=None) if change.dedup_key in taken else change for change in changes
    ]


def _conflict(pointer: str, detail: str, memory_id: UUID) -> Conflict:
    return Conflict(f"{pointer} {detail}", faults=[Fault(pointer, detail)], id=memory_id)

"""What a memory takes from those that are merged into it, and what it gives back when one of them is restored.

Kept is what it was by itself, what the merges made of it, and what each memory brought. So they can be given back one
after the other in any order, and what was changed besides stays: a field that is no longer what the merges made of it
is its own from then on, whatever anybody brought.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

MOST_USES: Final = 2**53
MOST_OPINIONS: Final = 2_000_000_000
"""What is kept of larger sums, which only imports could make: a column has to hold it, and an export to say it."""

MOST_TAKEN: Final = 10_000
"""Most memories that a request may merge into one, those of earlier merges included: it is read and written whole."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What of a memory is more than one memory's once others are merged into it.

    Attributes:
        uses: How often it was recalled.
        helpful: How often it was said to be.
        not_helpful: See there.
    """

    scene: list[str]
    importance: float
    priority: int
    last_accessed_at: datetime
    uses: int
    helpful: int
    not_helpful: int


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a merge makes the union, or the greatest, of."""

    scene: list[str]
    importance: float
    priority: int
    last_accessed_at: datetime


class Taken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one memory brought. A field that is None counts for nothing, and numbers are added."""

    id: UUID
    scene: list[str] | None = None
    importance: float | None = None
    priority: int | None = None
    last_accessed_at: datetime | None = None
    uses: int = 0
    helpful: int = 0
    not_helpful: int = 0


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Of a memory that others are merged into.

    Attributes:
        own: What it would be without them.
        made: What the last merge, or the last giving back, has made of it.
        taken: In the order in which it was taken.
    """

    own: Own
    made: Own
    taken: list[Taken]


class Balance(msgspec.Struct, frozen=True):
    """A memory after merging or giving back; it has no ledger where nothing is left to give back."""

    standing: Standing
    ledger: Ledger | None


def absorb(
    now: Standing,
    ledger: Ledger | None,
    brought: Sequence[tuple[UUID, Standing]],
    *,
    merged: Collection[UUID],
    fixed: bool,
) -> Balance:
    """Merge memories into one.

    Args:
        now: What it is.
        ledger: Of merges before this one.
        brought: The memories that are merged into it, and what they are.
        merged: All that were merged into it before and still are.
        fixed: Its fields stay as they are: it only counts their uses.
    """
    before = _settled(now, ledger, merged) if ledger else Ledger(own=_own(now), made=_own(now), taken=[])
    taken = [_taken(memory_id, its, fixed=fixed) for memory_id, its in brought]
    counted = _counted(now, taken)
    return _balanced(counted, before.own, [*before.taken, *taken])


def give_back(now: Standing, ledger: Ledger, ids: Collection[UUID], *, merged: Collection[UUID]) -> Balance:
    """Give back what memories brought.

    Args:
        now: What the one is that took it.
        ledger: Its own.
        ids: The memories that are restored.
        merged: All that are merged into it, these among them or not.
    """
    before = _settled(now, ledger, {*merged, *ids})
    returned = [its for its in before.taken if its.id in ids]
    counted = _counted(now, returned, sign=-1)
    return _balanced(counted, before.own, [its for its in before.taken if its.id not in ids])


def bring_anew(
    now: Standing, ledger: Ledger, memory_id: UUID, brought: Standing, *, merged: Collection[UUID]
) -> Balance:
    """Let one that was merged into it bring something else from now on, as it has given back itself."""
    before = _settled(now, ledger, merged)
    taken: list[Taken] = []
    counted = now
    for its in before.taken:
        if its.id != memory_id:
            taken.append(its)
            continue
        void = {field: None for field in Own.__struct_fields__ if getattr(its, field) is None}
        anew = msgspec.structs.replace(_taken(memory_id, brought, fixed=False), **void)
        counted = _counted(_counted(counted, [its], sign=-1), [anew])
        taken.append(anew)
    return _balanced(counted, before.own, taken)


def settled(now: Standing, ledger: Ledger, *, merged: Collection[UUID]) -> Ledger | None:
    """The same ledger without the memories that cannot be restored any more; None where it names no other.

    Giving back comes to the same with it. What those brought that are left out stays.

    Args:
        now: What the memory is that took it.
        ledger: Its own.
        merged: All that are merged into it.
    """
    before = _settled(now, ledger, merged)
    return Ledger(own=before.own, made=_own(now), taken=before.taken) if before.taken else None


def overwritten(now: Standing, here: Ledger | None, given: Ledger | None) -> Ledger | None:
    """The ledger of a memory that was made what a file says, all but how often and when it was used.

    Scene, importance and priority are by themselves, and were brought by others, as the file says; uses, opinions and
    the last access as is known here. So nothing is given back that is not in the memory.

    Args:
        now: What it is from now on.
        here: Of the merges that were made here.
        given: What the file says.
    """
    if here == given:
        return here
    mine = None if here is None else _without_changes(now, here)
    its = None if given is None else _without_changes(now, given)
    own = _own(now) if its is None else its.own
    own = msgspec.structs.replace(own, last_accessed_at=(now if mine is None else mine.own).last_accessed_at)
    kept = {} if mine is None else {taken.id: taken for taken in mine.taken}
    told = {} if its is None else {taken.id: taken for taken in its.taken}
    taken: list[Taken] = []
    for memory_id in {**told, **kept}:
        nothing = Taken(id=memory_id)
        said = told.get(memory_id, nothing)
        anew = msgspec.structs.replace(
            kept.get(memory_id, nothing), scene=said.scene, importance=said.importance, priority=said.priority
        )
        if anew != nothing:
            taken.append(anew)
    return Ledger(own=own, made=_own(now), taken=taken) if taken else None


def _taken(memory_id: UUID, its: Standing, *, fixed: bool) -> Taken:
    return Taken(
        id=memory_id,
        scene=None if fixed else its.scene,
        importance=None if fixed else its.importance,
        priority=None if fixed else its.priority,
        last_accessed_at=its.last_accessed_at,
        uses=its.uses,
        helpful=its.helpful,
        not_helpful=its.not_helpful,
    )


def _own(now: Standing | Own) -> Own:
    return Own(**{field: getattr(now, field) for field in Own.__struct_fields__})


def _settled(now: Standing, ledger: Ledger, merged: Collection[UUID]) -> Ledger:
    """Make its own what was changed since, and what was brought by memories that are no longer merged into it."""
    its_own = _without_changes(now, ledger)
    own = _together(its_own.own, (its for its in its_own.taken if its.id not in merged))
    return Ledger(own=own, made=ledger.made, taken=[its for its in its_own.taken if its.id in merged])


def _without_changes(now: Standing, ledger: Ledger) -> Ledger:
    """Make its own what was changed since."""
    changed = {
        field: getattr(now, field)
        for field in Own.__struct_fields__
        if getattr(now, field) != getattr(ledger.made, field)
    }
    own = msgspec.structs.replace(ledger.own, **changed)
    taken = [msgspec.structs.replace(its, **dict.fromkeys(changed)) for its in ledger.taken]
    return Ledger(own=own, made=ledger.made, taken=taken)


def _counted(now: Standing, taken: Iterable[Taken], *, sign: int = 1) -> Standing:
    uses, helpful, not_helpful = now.uses, now.helpful, now.not_helpful
    for its in taken:
        uses += sign * its.uses
        helpful += sign * its.helpful
        not_helpful += sign * its.not_helpful
    return msgspec.structs.replace(
        now,
        uses=min(max(uses, 0), MOST_USES),
        helpful=min(max(helpful, 0), MOST_OPINIONS),
        not_helpful=min(max(not_helpful, 0), MOST_OPINIONS),
    )


def _balanced(counted: Standing, own: Own, taken: list[Taken]) -> Balance:
    made = _together(own, taken)
    standing = msgspec.structs.replace(counted, **msgspec.structs.asdict(made))
    return Balance(standing, Ledger(own=own, made=made, taken=taken) if taken else None)


def _together(own: Own, taken: Iterable[Taken]) -> Own:
    scene = dict.fromkeys(own.scene)
    importance, priority, last = own.importance, own.priority, own.last_accessed_at
    for its in taken:
        scene |= dict.fromkeys(its.scene or ())
        importance = importance if its.importance is None else max(importance, its.importance)
        priority = priority if its.priority is None else max(priority, its.priority)
        last = last if its.last_accessed_at is None else max(last, its.last_accessed_at)
    return Own(scene=list(scene), importance=importance, priority=priority, last_accessed_at=last)

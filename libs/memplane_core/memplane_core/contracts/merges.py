"""Bodies of the routes that merge memories and take that back."""

from typing import Annotated
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import MemoryView
from memplane_core.domain.errors import Fault, InvalidRequest

MAX_MERGED = 1_000
"""Most memories of one request."""


class MergeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories to make one of: active ones of one user, one agent and one type.

    Attributes:
        ids: Of 2 to 1,000 memories.
        survivor: The one of them that stays. Where it is left out: a pinned one, else the one that lives longest, has
            the highest priority, the greatest importance, the most uses, the longest text, or is the latest.
    """

    ids: Annotated[list[UUID], msgspec.Meta(min_length=2, max_length=MAX_MERGED)]
    survivor: UUID | None = None


class Merged(msgspec.Struct, kw_only=True):
    """What was merged.

    Attributes:
        survivor: The memory that stays, as it is now.
        merged: Those that it stands for from now on, in the order of their ids.
    """

    survivor: MemoryView
    merged: list[UUID]


class UndoRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A memory that gives back all that was merged into it.

    Attributes:
        survivor: Its id; it may be gone itself.
    """

    survivor: UUID


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored.

    Attributes:
        restored: Memories that are active again, in the order of their ids.
        complete: False where more than 1,000 were merged into it: send the request again for the next.
    """

    restored: list[UUID]
    complete: bool


def check_merge(request: MergeRequest) -> None:
    """Check what the type cannot say. Raises InvalidRequest, with a fault for each field that is wrong."""
    seen: set[UUID] = set()
    faults: list[Fault] = []
    for n, memory_id in enumerate(request.ids):
        if memory_id in seen:
            faults.append(Fault(f"/ids/{n}", "is named before"))
        seen.add(memory_id)
    if request.survivor is not None and request.survivor not in seen:
        faults.append(Fault("/survivor", "must be one of ids"))
    if faults:
        raise InvalidRequest(f"{faults[0].pointer}: {faults[0].detail}", faults=faults)

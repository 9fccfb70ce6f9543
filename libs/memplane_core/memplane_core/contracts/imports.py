"""What an import says, to its caller and between the services."""

from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.export import TrailerLine
from memplane_core.contracts.policy import PolicyPatch
from memplane_core.domain.errors import Fault

PART_BYTES: Final = 512 * 1024
"""Of an import, what is stored at once: lines until they have this many bytes."""

PART_LINES: Final = 500

LISTED: Final = 100
"""Most conflicts that an import tells one by one."""

OnConflict = Literal["skip", "overwrite", "fail"]
"""What becomes of a memory that is there with other content: it stays, it is changed, or the import stops before it."""

ConflictReason = Literal["changed", "external_id", "duplicate"]


class ImportCounts(msgspec.Struct, kw_only=True):
    """What an import has done.

    Attributes:
        lines: That have been read and dealt with, from the first on.
        created: Memories that were not there.
        unchanged: Memories that were there, the same.
        overwritten: Memories that were there with other content, and were changed.
        conflicts: Memories that were left out, since something else holds their place.
        history: Entries of histories that were not there.
        observations: That were not there, and that sessions hold now.
        observations_unchanged: That were there, held or as memories by now.
    """

    lines: int = 0
    created: int = 0
    unchanged: int = 0
    overwritten: int = 0
    conflicts: int = 0
    history: int = 0
    observations: int = 0
    observations_unchanged: int = 0

    def add(self, more: "ImportCounts") -> None:
        """Add all of `more`."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))

    @property
    def memories(self) -> int:
        """Lines of memories that were dealt with."""
        return self.created + self.unchanged + self.overwritten + self.conflicts

    @property
    def held(self) -> int:
        """Lines of observations that were dealt with."""
        return self.observations + self.observations_unchanged


class ImportConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that something else stands in the way of.

    Attributes:
        line: Its line, from 1.
        id: Of the memory in the file.
        reason: `changed`: it is there with other content. `external_id`, `duplicate`: another memory has its name, or
            is equal to it.
        other: That other memory; the same id for `changed`.
    """

    line: int
    id: UUID
    reason: ConflictReason
    other: UUID | None


class ImportResult(msgspec.Struct, kw_only=True):
    """What became of a whole import.

    Attributes:
        dry_run: Nothing was stored: the counts are what would be.
        policy: Whether the policy was taken over.
        counts: What was done.
        conflicts: The first hundred.
    """

    dry_run: bool
    policy: bool
    counts: ImportCounts
    conflicts: list[ImportConflict]


class ImportPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a part of an import begins.

    Attributes:
        line: Number of its first line, from 1.
        memory: The last memory before it; None where there was none.
        version: Of that memory, in the file.
        entry: Of the last line of its history, 0 where there was none.
        takes_history: Whether that memory takes the history that follows it.
        ended: The trailer was there already.
        observation: The last observation before it; None where there was none.
    """

    line: int = 1
    memory: UUID | None = None
    version: int = 0
    entry: int = 0
    takes_history: bool = False
    ended: bool = False
    observation: UUID | None = None


class ImportFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why an import stops: the line, and what is wrong with it."""

    line: int
    status: Literal[409, 422]
    detail: str
    errors: list[Fault]
    id: UUID | None = None


class ImportPartDone(msgspec.Struct, kw_only=True):
    """What the retrieval service says of a part.

    Attributes:
        place: Where the next part begins.
        fault: Why there must be none: what stands above that line is stored.
        policy: The policy line, where it was in this part.
        trailer: The trailer, likewise.
    """

    place: ImportPlace
    counts: ImportCounts
    conflicts: list[ImportConflict]
    fault: ImportFault | None = None
    policy: PolicyPatch | None = None
    trailer: TrailerLine | None = None

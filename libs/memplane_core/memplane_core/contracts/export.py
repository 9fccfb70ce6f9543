"""The lines of an export, and what an import of them says.

A header, the policy unless the export is of a part, memories in the order of their ids, each with its history behind
it, and a trailer. Every line is one JSON object and says in `kind` which it is.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.checks import check_write, object_faults, text_faults
from memplane_core.contracts.memories import Content, EntityId, Importance, Label, MemoryWrite, Priority, Scene
from memplane_core.contracts.policy import PolicyPatch
from memplane_core.domain.errors import Fault, InvalidRequest
from memplane_core.domain.memory import CONTENT_BYTES, LABEL_BYTES, METADATA_BYTES, METADATA_DEPTH, State, to_utc
from memplane_core.domain.merge_ledger import Ledger, Own, Taken

FORMAT: Final = "memplane-export"
FORMAT_VERSION: Final = 1

LINE_BYTES: Final = 8 * 1024 * 1024
"""Longest line. A memory has 256 KiB at most, should JSON write each byte of it as six, and what it took in merges."""

PART_BYTES: Final = 512 * 1024
"""Of an import, what is stored at once: lines until they have this many bytes."""

PART_LINES: Final = 500

LISTED: Final = 100
"""Most conflicts that an import tells one by one."""

_ID_BYTES: Final = 64
_CHANGES_BYTES: Final = 2 * (CONTENT_BYTES + METADATA_BYTES) * 6

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Version = Annotated[int, msgspec.Meta(ge=1, le=2_000_000_000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Total = Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_ID_BYTES)]

OnConflict = Literal["skip", "overwrite", "fail"]
"""What becomes of a memory that is there with other content: it stays, it is changed, or the import stops before it."""

ConflictReason = Literal["changed", "external_id", "duplicate"]


class ExportTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose memories these are."""

    id: UUID
    name: str


class HeaderLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="header"):
    """The first line.

    Attributes:
        format: Tells the format from all others.
        version: Of the format.
        exported_at: When it began.
        model: Embedding model of the tenant; vectors are not exported.
        dim: Length of its vectors.
        where: What the memories match, as a filter; null where the export is of all of them.
        history: Whether the memories' histories are in it.
        after: Id of the memory that this goes on after; null where it goes on after none.
    """

    format: Literal["memplane-export"]
    version: Literal[1]
    tenant: ExportTenant
    exported_at: Moment
    model: str
    dim: int
    where: dict[str, Any] | None
    history: bool
    after: UUID | None


class PolicyLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="policy"):
    """What holds for the tenant, defaults filled in."""

    policy: PolicyPatch


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="memory"):
    """A memory in whatever state, with all that is kept of it.

    Attributes:
        occurred_given: False where `occurred_at` is only the time of writing.
        distinct: No equal memory may stand beside it while it is active. Never so for one with an `external_id`.
        last_accessed_at: When it was last found, or made.
        helpful: How often it was said to be.
        not_helpful: See there.
        priority_moved_at: When maintenance last moved its priority.
        unscored: Nobody gave its importance, and a language model is to say what it is.
        purge_at: When it may be deleted for good.
        merges: What it has taken from memories that were merged into it, to give back when they are restored.
    """

    id: UUID
    external_id: EntityId | None
    content: Content
    actor: EntityId | None
    scene: Scene
    source: Label | None
    memory_type: Label
    user_id: EntityId | None
    agent_id: EntityId | None
    session_id: EntityId | None
    importance: Importance
    priority: Priority
    pinned: bool
    metadata: dict[str, Any]
    occurred_at: Moment
    occurred_given: bool
    distinct: bool
    expires_at: Moment | None
    created_at: Moment
    updated_at: Moment
    last_accessed_at: Moment
    access_count: Count
    helpful: Total
    not_helpful: Total
    priority_moved_at: Moment | None
    unscored: bool
    version: Version
    state: State
    merged_into: UUID | None
    purge_at: Moment | None
    merges: Ledger | None


class HistoryLine(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="history"
):
    """A change of the memory whose line is the nearest above, the oldest first.

    Attributes:
        version: That the memory had from then on.
        changes: Old values of the fields that changed, by name.
    """

    memory_id: UUID
    version: Version
    event: Name
    key_id: Name
    request_id: Name
    at: Moment
    changes: dict[str, Any]


class TrailerLine(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="trailer"
):
    """The last line: an export without one is not whole.

    Attributes:
        memories: Lines of memories.
        history: Lines of history.
        states: Memories by state.
        records_sha256: SHA-256 of the lines of memories and history: the same for the same records, whenever exported.
        sha256: SHA-256 of all lines before this one, their ends included.
    """

    memories: Count
    history: Count
    states: dict[State, Count]
    records_sha256: Digest
    sha256: Digest


Line = HeaderLine | PolicyLine | MemoryLine | HistoryLine | TrailerLine


def check_line(line: MemoryLine | HistoryLine, *, pointer: str) -> None:
    """What the types cannot say.

    Raises:
        InvalidRequest: With a fault for each field that cannot be kept, or that another one contradicts.
    """
    faults = _memory_faults(line) if isinstance(line, MemoryLine) else _history_faults(line)
    if isinstance(line, MemoryLine):
        check_write(_as_write(line), pointer=pointer)
    if faults:
        placed = [Fault(f"{pointer}/{fault.pointer}", fault.detail) for fault in faults]
        raise InvalidRequest("; ".join(f"{fault.pointer}: {fault.detail}" for fault in placed[:3]), faults=placed)
    for name in line.__struct_fields__:
        value: object = getattr(line, name)
        if isinstance(value, datetime):
            to_utc(value, pointer=f"{pointer}/{name}")


def _as_write(line: MemoryLine) -> MemoryWrite:
    named = {name: getattr(line, name) for name in MemoryWrite.__struct_fields__ if name != "on_duplicate"}
    return MemoryWrite(**named)


def _memory_faults(line: MemoryLine) -> list[Fault]:
    faults: list[Fault] = []
    if line.id.version != 7:
        faults.append(Fault("id", "must be a UUID of version 7"))
    if line.distinct and line.external_id is not None:
        faults.append(Fault("distinct", "must be false for a memory with an external_id"))
    if (line.merged_into is not None) != (line.state == "merged"):
        faults.append(Fault("merged_into", "must be given for a merged memory, and be null for all others"))
    if line.merged_into == line.id:
        faults.append(Fault("merged_into", "must be another memory"))
    if line.state == "active" and line.purge_at is not None:
        faults.append(Fault("purge_at", "must be null for an active memory"))
    return faults if line.merges is None else faults + _ledger_faults(line.merges)


def _ledger_faults(ledger: Ledger) -> list[Fault]:
    """What could not be given back."""
    faults: list[Fault] = []
    parts: list[tuple[str, Own | Taken]] = [("own", ledger.own), ("made", ledger.made)]
    parts += [(f"taken/{n}", taken) for n, taken in enumerate(ledger.taken)]
    for where, part in parts:
        try:
            msgspec.convert(msgspec.to_builtins(part), _Kept if isinstance(part, Own) else _Brought)
        except msgspec.ValidationError as error:
            faults.append(Fault(f"merges/{where}", str(error)))
        else:
            for scene in part.scene or ():
                faults += text_faults(scene, f"merges/{where}/scene", LABEL_BYTES)
    return faults


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """An `Own` whose values can be a memory's."""

    scene: Scene
    importance: Importance
    priority: Priority
    last_accessed_at: Moment


class _Brought(msgspec.Struct, forbid_unknown_fields=True):
    """A `Taken` whose values can be a memory's."""

    id: UUID
    scene: Scene | None = None
    importance: Importance | None = None
    priority: Priority | None = None
    last_accessed_at: Moment | None = None
    uses: Count = 0
    helpful: Total = 0
    not_helpful: Total = 0


def _history_faults(line: HistoryLine) -> list[Fault]:
    faults: list[Fault] = []
    for name in ("event", "key_id", "request_id"):
        faults += text_faults(getattr(line, name), name, _ID_BYTES)
    # One level more than metadata, which is a value in it.
    details = object_faults(line.changes, most_bytes=_CHANGES_BYTES, most_deep=METADATA_DEPTH + 1)
    return [*faults, *(Fault("changes", detail) for detail in details)]


class ExportPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far an export has come.

    Attributes:
        id: Of the last memory that was given out.
        version: Of the last of its history that was given out, where there is more of it; else null.
        upto: Its version when it was given out: later changes are not in this export.
    """

    id: UUID
    version: int | None = None
    upto: int | None = None


class ExportPageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway asks the retrieval service for."""

    filters: dict[str, Any] = {}
    history: bool = True
    place: ExportPlace | None = None


class ExportPageEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the answer; the lines of the export follow.

    Attributes:
        place: Where to go on; null where nothing is left.
        states: Memories of this page by state.
        history: Lines of history of this page.
    """

    place: ExportPlace | None
    states: dict[State, int]
    history: int


class ImportCounts(msgspec.Struct, kw_only=True):
    """What an import has done.

    Attributes:
        lines: That have been read and dealt with, from the first on.
        created: Memories that were not there.
        unchanged: Memories that were there, the same.
        overwritten: Memories that were there with other content, and were changed.
        conflicts: Memories that were left out, since something else holds their place.
        history: Entries of histories that were not there.
    """

    lines: int = 0
    created: int = 0
    unchanged: int = 0
    overwritten: int = 0
    conflicts: int = 0
    history: int = 0

    def add(self, more: "ImportCounts") -> None:
        """Add all of `more`."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))

    @property
    def memories(self) -> int:
        """Lines of memories that were dealt with."""
        return self.created + self.unchanged + self.overwritten + self.conflicts


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
    """

    line: int = 1
    memory: UUID | None = None
    version: int = 0
    entry: int = 0
    takes_history: bool = False
    ended: bool = False


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

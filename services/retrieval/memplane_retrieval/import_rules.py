"""How a memory in a file stands to what is there: new, the same, another, or in somebody's place."""

import hashlib
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from memplane_core.contracts.export import MemoryLine, ObservationLine
from memplane_core.contracts.imports import LISTED, ConflictReason, ImportConflict, ImportCounts, OnConflict
from memplane_core.domain.memory import dedup_key
from memplane_core.domain.observations import Observation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import memories
from memplane_core.storage.memories import Name, Revision
from memplane_core.storage.memory_writes import release_places
from memplane_core.storage.new_memories import NewMemory, Past
from memplane_core.storage.observations import StoredObservation, seq_of
from memplane_core.storage.session import Connection
from memplane_retrieval.changes import Amended, amend
from memplane_retrieval.embedding import TextToChunk
from memplane_retrieval.import_lines import Numbered

_GIVEN: Final = (
    "content", "actor", "scene", "source", "memory_type", "user_id", "agent_id", "session_id", "importance",
    "priority", "pinned", "metadata", "occurred_at", "expires_at", "valid_from", "valid_to",
)  # fmt: skip
"""Fields that a caller may set."""

_KEPT: Final = (
    "version", "state", "merged_into", "purge_at", "created_at", "updated_at", "last_accessed_at", "access_count",
    "helpful", "not_helpful", "merges", "superseded_by",
)  # fmt: skip
"""Fields of a `Past` that are called so in a line too."""


class Stored(msgspec.Struct, kw_only=True):
    """What became of a part's memories.

    Attributes:
        takes: Those whose history in the file is theirs here too.
    """

    counts: ImportCounts
    conflicts: list[ImportConflict]
    takes: set[UUID]


class StopImportError(Exception):
    """A conflict at which the import is to stop: what is above it is to be stored alone."""

    def __init__(self, conflict: ImportConflict) -> None:
        super().__init__()
        self.conflict = conflict


def conflict_of(its: Numbered, reason: ConflictReason, other: UUID | None) -> ImportConflict:
    """The conflict of a memory with another, or with itself as it is here."""
    return ImportConflict(line=its.number, id=its.line.id, reason=reason, other=other)


def note_clash(stored: Stored, conflict: ImportConflict, on_conflict: OnConflict) -> None:
    """Take note of a conflict. Raises StopImportError where it ends the import."""
    if on_conflict == "fail":
        raise StopImportError(conflict)
    stored.counts.conflicts += 1
    if len(stored.conflicts) < LISTED:
        stored.conflicts.append(conflict)


async def clashes(tenant: TenantId, connection: Connection, blocked: Sequence[Numbered]) -> list[ImportConflict]:
    """What stands in the place of each of these: the memory of its name, or an equal one; None where that is gone.

    An equal one that has expired stands in nobody's way, and is left out.
    """
    if not blocked:
        return []
    names = {its.number: name for its in blocked if (name := _name(its.line)) is not None}
    keys = {its.number: key for its in blocked if its.line.state == "active" and (key := _key(its.line)) is not None}
    named = await memories.find_named(tenant, connection, list(names.values())) if names else {}
    twins = await memories.find_twins(tenant, connection, list(keys.values())) if keys else {}
    found: list[ImportConflict] = []
    for its in blocked:
        if its.number in names:
            other = named.get(names[its.number])
        else:
            other = twins.get(keys[its.number]) if its.number in keys else None
            if other is not None and other.expired:
                continue
        reason: ConflictReason = "external_id" if its.number in names else "duplicate"
        found.append(conflict_of(its, reason, None if other is None else other.memory.id))
    return found


async def make_room(tenant: TenantId, connection: Connection, keys: Sequence[bytes | None]) -> bool:
    """Let expired memories no longer stand in the place of what has these keys, and tell whether there were any."""
    given = [key for key in keys if key is not None]
    twins = await memories.find_twins(tenant, connection, given, lock=True) if given else {}
    over = [twin.memory.id for twin in twins.values() if twin.expired]
    if over:
        await release_places(tenant, connection, over)
    return bool(over)


def _name(line: MemoryLine) -> Name | None:
    return None if line.external_id is None else Name(line.external_id, line.user_id, line.agent_id)


def _key(line: MemoryLine) -> bytes | None:
    if not line.distinct:
        return None
    return dedup_key(
        content=line.content,
        actor=line.actor,
        memory_type=line.memory_type,
        user_id=line.user_id,
        agent_id=line.agent_id,
        session_id=line.session_id,
        occurred_at=line.occurred_at if line.occurred_given else None,
        valid_from=line.valid_from,
        valid_to=line.valid_to,
    )


def new_memory(line: MemoryLine, *, rev: int) -> NewMemory:
    """What is to be stored of a memory that is not there; `rev` is of its indexed form."""
    return NewMemory(
        id=line.id,
        external_id=line.external_id,
        occurred_given=line.occurred_given,
        dedup_key=_key(line),
        unscored=line.unscored,
        past=Past(rev=rev, moved_at=line.priority_moved_at, **{name: getattr(line, name) for name in _KEPT}),
        **{name: getattr(line, name) for name in _GIVEN},
    )


def stored_observation(line: ObservationLine) -> StoredObservation:
    """What a session is to hold again; it is embedded when it becomes a memory."""
    return StoredObservation(
        observation=Observation(**{name: getattr(line, name) for name in Observation.__struct_fields__}),
        seq=seq_of(line.observed_at),
        occurred_given=line.occurred_given,
        unscored=line.unscored,
        generation=None,
        chunks=[],
    )


def lock_order(memory: NewMemory) -> bytes:
    """Where every writer puts it among others: by what it can collide in."""
    if memory.external_id is not None:
        return hashlib.sha256(msgspec.msgpack.encode((memory.user_id, memory.agent_id, memory.external_id))).digest()
    return memory.dedup_key or memory.id.bytes


def text_of(line: MemoryLine) -> TextToChunk:
    """What decides its indexed text."""
    return TextToChunk(line.content, line.actor, line.occurred_at)


def has_new_text(there: Revision | None, line: MemoryLine) -> bool:
    """Whether the memory is not there, or has another indexed text there."""
    if there is None:
        return True
    memory = there.memory
    return text_of(line) != TextToChunk(memory.content, memory.actor, memory.occurred_at)


def is_same(there: Revision, line: MemoryLine) -> bool:
    """Whether a memory says what the line says; how often it was used since, or changed and changed back, is aside."""
    memory = there.memory
    return (
        not amended_by(there, line).changed
        and there.occurred_given == line.occurred_given
        and (memory.external_id, memory.state, memory.merged_into, memory.purge_at, memory.superseded_by)
        == (line.external_id, line.state, line.merged_into, line.purge_at, line.superseded_by)
    )


def amended_by(there: Revision, line: MemoryLine) -> Amended:
    """What is there with the line's fields."""
    given = {name: getattr(line, name) for name in _GIVEN}
    if line.unscored and line.importance == there.memory.importance:
        del given["importance"]  # which nobody has said
    amended = amend(there, given)
    return msgspec.structs.replace(
        amended,
        after=msgspec.structs.replace(amended.after, superseded_by=line.superseded_by),
        occurred_given=line.occurred_given,
        dedup_key=_key(line),
    )

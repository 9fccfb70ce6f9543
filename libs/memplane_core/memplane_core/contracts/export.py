"""The lines of an export.

A header, the policy unless the export is of a part, what sessions hold in the order of ids, memories in the order of
theirs, each with its history behind it, and a trailer. Every line is one JSON object and says in `kind` which it is.

Observations come before memories: one that becomes a memory while the export is read is in it as both, and as a
memory alone once it is imported. The other way round it could be in it as neither.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import Content, EntityId, Importance, Label, Priority, Scene
from memplane_core.contracts.policy import PolicyPatch
from memplane_core.domain.memory import State
from memplane_core.domain.merge_ledger import MOST_OPINIONS, MOST_USES, Ledger

FORMAT: Final = "memplane-export"
FORMAT_VERSION: Final = 1

LINE_BYTES: Final = 8 * 1024 * 1024
"""Longest line. A memory has 256 KiB at most, should JSON write each byte of it as six, and what it took in merges."""

ID_BYTES: Final = 64

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Version = Annotated[int, msgspec.Meta(ge=1, le=2_000_000_000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_USES)]
Total = Annotated[int, msgspec.Meta(ge=0, le=MOST_OPINIONS)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_BYTES)]


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


class ObservationLine(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="observation"
):
    """What a session holds in short-term memory.

    Attributes:
        occurred_given: False where `occurred_at` is only the time of the request.
        observed_at: Tells its place in the session.
        unscored: Nobody gave its importance, and a language model is to say what the memory's is.
    """

    id: UUID
    content: Content
    actor: EntityId | None
    scene: Scene
    source: Label | None
    memory_type: Label
    user_id: EntityId | None
    agent_id: EntityId | None
    session_id: EntityId
    importance: Importance
    metadata: dict[str, Any]
    occurred_at: Moment
    occurred_given: bool
    observed_at: Moment
    strengthened: Total
    unscored: bool


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
    valid_from: Moment | None = None
    valid_to: Moment | None = None
    superseded_by: UUID | None = None


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
        records_sha256: SHA-256 of the lines of observations, memories and history: the same for the same records,
            whenever exported.
        sha256: SHA-256 of all lines before this one, their ends included.
        observations: Lines of observations.
    """

    memories: Count
    history: Count
    states: dict[State, Count]
    records_sha256: Digest
    sha256: Digest
    observations: Count = 0


Line = HeaderLine | PolicyLine | ObservationLine | MemoryLine | HistoryLine | TrailerLine


class ExportPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far an export has come.

    Attributes:
        id: Of the last memory that was given out, or of the last observation.
        version: Of the last of its history that was given out, where there is more of it; else null.
        upto: Its version when it was given out: later changes are not in this export.
        held: It is an observation, and there may be more of them.
    """

    id: UUID
    version: int | None = None
    upto: int | None = None
    held: bool = False


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
        observations: Lines of observations of this page.
    """

    place: ExportPlace | None
    states: dict[State, int]
    history: int
    observations: int

"""Bodies of the routes for short-term memory, the same at the gateway and behind it."""

from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from memplane_core.contracts.checks import check_session, check_write
from memplane_core.contracts.memories import (
    Content,
    EntityId,
    Importance,
    Label,
    MemoryWrite,
    Moment,
    Scene,
    SessionRef,
)
from memplane_core.domain.errors import invalid
from memplane_core.domain.observations import Observation

MAX_BATCH: Final = 100

CITES: Final = "derived_from"


class Observed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that was observed.

    Attributes:
        importance: What the policy says when it is left out; 0 is a value.
        metadata: Without `derived_from`: an observation is made from no memory.
        occurred_at: Now, when it is left out.
    """

    content: Content
    actor: EntityId | UnsetType | None = UNSET
    scene: Scene | UnsetType = UNSET
    source: Label | UnsetType | None = UNSET
    memory_type: Label | UnsetType = UNSET
    importance: Importance | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    occurred_at: Moment | UnsetType = UNSET

    def as_write(self, session: SessionRef) -> MemoryWrite:
        """The memory that it may become."""
        fields = {name: getattr(self, name) for name in Observed.__struct_fields__}
        return MemoryWrite(**fields, user_id=session.user_id, agent_id=session.agent_id, session_id=session.session_id)


class ObservationWrite(Observed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One observation and the session that it belongs to."""

    session_id: EntityId
    user_id: EntityId | UnsetType | None = UNSET
    agent_id: EntityId | UnsetType | None = UNSET

    @property
    def session(self) -> SessionRef:
        """The session alone."""
        return SessionRef(session_id=self.session_id, user_id=self.user_id, agent_id=self.agent_id)


class ObservationBatch(SessionRef, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1 to 100 observations of one session, in the order in which they were made. All are taken or none."""

    observations: Annotated[list[Observed], msgspec.Meta(min_length=1, max_length=MAX_BATCH)]


class ObservationTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an observation, and of what its session held before.

    Attributes:
        id: Of the observation, and of the memory that it is now or may become.
        kept: False where its importance is below the `threshold` of the policy: it is nowhere.
        importance: As it was given or worked out.
        strengthened: Ids of observations that it is alike to.
        promoted: Ids of observations that have become memories of the same ids, in this order.
        dropped: Ids of observations that had to leave, and are forgotten.
    """

    id: UUID
    kept: bool
    importance: float
    strengthened: list[UUID]
    promoted: list[UUID]
    dropped: list[UUID]


class ObservationsTaken(msgspec.Struct, frozen=True, kw_only=True):
    """One result for each observation of the request, in its order."""

    results: list[ObservationTaken]


class ObservationPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a session holds, oldest first; `next_cursor` is null on the last page."""

    results: list[Observation]
    next_cursor: str | None


class SessionEnded(msgspec.Struct, frozen=True, kw_only=True):
    """What the session held.

    Attributes:
        promoted: Ids of observations that have become memories of the same ids, in the order in which they were made.
    """

    promoted: list[UUID]


def check_observation(observed: Observed, session: SessionRef, *, pointer: str = "") -> None:
    """Raises InvalidRequest with a fault for each field of an observation that cannot be kept."""
    check_write(observed.as_write(session), pointer=pointer)
    if isinstance(observed.metadata, dict) and CITES in observed.metadata:
        raise invalid(
            f"{pointer}/metadata/{CITES}", "an observation is made from no memory: write what is made as a memory"
        )


def check_batch(batch: ObservationBatch) -> None:
    """`check_observation` for each of a batch."""
    check_session(batch)
    for n, observed in enumerate(batch.observations):
        check_observation(observed, batch, pointer=f"/observations/{n}")

"""Short-term memory: what a session holds of what it observed, and what leaves it, when and where to.

Pure rules over one session's buffer, oldest first. They draw no lots and ask no clock: the same observations under the
same rules always come to the same.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
import numpy as np

from memplane_core.domain.index import FloatArray
from memplane_core.domain.memory import DEFAULT_PRIORITY, Memory, begun

ShortTermKind = Literal["fifo", "enhanced"]
Overflow = Literal["promote", "drop"]

MOST_HELD: Final = 1_000
"""Most observations that a session holds, whatever was imported into it: `buffer_size` at most by itself."""

Unit = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ShortTermRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a session's short-term memory works.

    Attributes:
        kind: `fifo`: the oldest observation leaves first. `enhanced`: what is observed again and again becomes a
            memory at once, and the least important leaves first.
        buffer_size: Most observations that a session holds.
        threshold: What is of less importance than this is not kept at all.
        enhance_similarity_threshold: `enhanced`: least cosine of two observations' vectors at which the later one
            strengthens the earlier; the model's own where it is left out.
        enhance_threshold: `enhanced`: so often strengthened, an observation becomes a memory.
        overflow: What becomes of an observation that leaves because there is no room: `promote` makes a memory of
            it, `drop` forgets it.
    """

    kind: ShortTermKind = "fifo"
    buffer_size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    threshold: Unit = 0.0
    enhance_similarity_threshold: Unit | None = None
    enhance_threshold: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    overflow: Overflow = "promote"

    @property
    def needs_vectors(self) -> bool:
        """Whether observations are embedded when they come: to be compared, or for the memories that they become."""
        return self.kind == "enhanced" or self.overflow == "promote"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Whose buffer it is: all three together name a session, and None is a name like any other."""

    user_id: str | None
    agent_id: str | None
    session_id: str


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """An observation as a session holds it, and as it is returned: `content` to the byte, times in UTC.

    Attributes:
        id: Also of the memory that it becomes.
        strengthened: How often something alike came after it.
        observed_at: When it came, by the database's clock; later than what came before it in its session.
    """

    id: UUID
    content: str
    actor: str | None
    scene: list[str]
    source: str | None
    memory_type: str
    user_id: str | None
    agent_id: str | None
    session_id: str
    importance: float
    metadata: dict[str, Any]
    occurred_at: datetime
    observed_at: datetime
    strengthened: int


def as_memory(observation: Observation) -> Memory:
    """The memory that an observation would become, as if it were made when it came: what a filter is tried on."""
    fields: dict[str, Any] = {
        name: getattr(observation, name)
        for name in Observation.__struct_fields__
        if name not in ("strengthened", "observed_at")
    }
    fields |= {
        "external_id": None,
        "priority": DEFAULT_PRIORITY,
        "pinned": False,
        "expires_at": None,
        "valid_from": None,
        "valid_to": None,
    }
    return begun(fields, at=observation.observed_at)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at of an observation.

    Attributes:
        strengthened: How often something alike came after it.
        vectors: Of its windows, unit length, shape (n, dim); None where it has not been embedded.
    """

    id: UUID
    importance: float
    strengthened: int = 0
    vectors: FloatArray | None = None


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A buffer after one observation came.

    Attributes:
        held: What it holds, oldest first.
        kept: False where what came was below the threshold of the senses: then nothing else has happened.
        strengthened: Ids of those that it strengthened, oldest first.
        promoted: Ids of those that are to become memories, in this order; may name what came.
        dropped: Ids of those that are forgotten, in this order; may name what came.
    """

    held: tuple[Held, ...]
    kept: bool = True
    strengthened: tuple[UUID, ...] = ()
    promoted: tuple[UUID, ...] = ()
    dropped: tuple[UUID, ...] = ()


def take(held: Sequence[Held], came: Held, *, rules: ShortTermRules, alike_from: float) -> Taken:
    """What becomes of a session's buffer when an observation comes.

    First it strengthens what it is like, then what was strengthened often enough is promoted, oldest first; then it
    is held itself, and while there is no room one leaves: the oldest, or under `enhanced` the one that comes first by
    (importance, strengthened, age), which may be the one that came.

    Args:
        held: The buffer, oldest first.
        came: What comes.
        rules: Of the session's tenant.
        alike_from: Cosine from which on two are alike.
    """
    if came.importance < rules.threshold:
        return Taken(held=tuple(held), kept=False)
    after: list[Held] = []
    strengthened: list[UUID] = []
    promoted: list[UUID] = []
    for its in held:
        if rules.kind != "enhanced" or likeness(its.vectors, came.vectors) < alike_from:
            after.append(its)
            continue
        strengthened.append(its.id)
        if its.strengthened + 1 >= rules.enhance_threshold:
            promoted.append(its.id)
        else:
            after.append(msgspec.structs.replace(its, strengthened=its.strengthened + 1))
    after.append(came)
    dropped: list[UUID] = []
    while len(after) > rules.buffer_size:
        leaving = after[0] if rules.kind == "fifo" else min(after, key=_strength)
        after.remove(leaving)
        (promoted if rules.overflow == "promote" else dropped).append(leaving.id)
    return Taken(held=tuple(after), strengthened=tuple(strengthened), promoted=tuple(promoted), dropped=tuple(dropped))


def _strength(held: Held) -> tuple[float, int]:
    """Orders the weakest first; of equals `min` takes the oldest."""
    return held.importance, held.strengthened


def likeness(one: FloatArray | None, other: FloatArray | None) -> float:
    """The best cosine of any two windows, -1..1, to four places; -1 where one of the two has no vectors.

    Rounded, so that the order in which floats are added does not decide. Vectors of two models are not compared.
    """
    if one is None or other is None or not one.size or not other.size or one.shape[1] != other.shape[1]:
        return -1.0
    return round(float(np.max(one @ other.T)), 4)


def alike_from(rules: ShortTermRules, *, span: float) -> float:
    """The cosine from which on two observations are alike.

    Where the rules name none it is a quarter of the model's span (`ModelProfile.span`) below 1: .95 for e5, .875 for
    bge-small, .81 for MiniLM.
    """
    named = rules.enhance_similarity_threshold
    return round(1.0 - span / 4, 4) if named is None else named

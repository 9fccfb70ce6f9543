"""A tenant's policy: how its memories are kept and ranked where a request does not say. Limits are not policy."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from memplane_core.contracts.memories import Importance
from memplane_core.domain.context import ContextTemplate
from memplane_core.domain.memory import DEFAULT_IMPORTANCE
from memplane_core.domain.merging import Guard
from memplane_core.domain.observations import ShortTermRules
from memplane_core.domain.priority import PriorityRules
from memplane_core.domain.ranking import DECAY_RATE, Preset, Weights

ImportanceScorer = Literal["default", "heuristic", "llm"]

DecayRate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Relevance = Annotated[float, msgspec.Meta(ge=0, le=1)]


Days = Annotated[int, msgspec.Meta(ge=0, le=36_500)]

DEFAULT_GRACE_DAYS: Final = 30


EveryHours = Annotated[int, msgspec.Meta(ge=1, le=8760)]


class PrioritySchedule(PriorityRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether priorities are moved without being asked for, how often at most, and by which rules."""

    enabled: bool = True
    every_hours: EveryHours = 24


class PruneRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which memories are forgotten for being of no use. Pinned ones never are.

    Attributes:
        age_by: `accessed`: those that were last recalled, written, changed or restored at least `max_idle_days` ago.
            `occurred`: those that happened so long ago, and had nothing of this done for 30 days, or for
            `max_idle_days` where that is less.
        max_idle_days: See `age_by`.
        max_priority: Only those of at most this priority.
        grace_days: For how long what was forgotten can be restored.
    """

    age_by: Literal["accessed", "occurred"] = "accessed"
    max_idle_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 365
    max_priority: Annotated[int, msgspec.Meta(ge=1, le=5)] = 2
    grace_days: Days = DEFAULT_GRACE_DAYS


class PruneSchedule(PruneRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether memories are pruned without being asked for, how often at most, and by which rules."""

    enabled: bool = False
    every_hours: EveryHours = 24


MergeThreshold = Annotated[float, msgspec.Meta(ge=0.5, le=1)]


class MergeRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which memories of one user, agent and type are near-copies, and for how long a merge can be taken back.

    Attributes:
        threshold: Least cosine of the vectors of any two that are merged; the model's own where it is left out.
        guard: What has to be the same in their texts besides: `words`, all of them in their order, but for case, marks
            and fillers; `facts`, the numbers and denials; `none`, nothing.
        grace_days: For how long what was merged away can be restored.
    """

    threshold: MergeThreshold | None = None
    guard: Guard = "words"
    grace_days: Days = DEFAULT_GRACE_DAYS


class MergeSchedule(MergeRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether near-copies are merged without being asked for, how often at most, and by which rules."""

    enabled: bool = False
    every_hours: EveryHours = 24


class ReflectRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When, and upon how much, a language model reflects.

    Attributes:
        threshold: Importance that the memories of a user and agent must have gathered since they were last reflected
            upon: 15 are thirty of 0.5.
        max_memories: Most that the model is shown at once.
        max_insights: Most that it may come to from those.
    """

    threshold: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 15.0
    max_memories: Annotated[int, msgspec.Meta(ge=1, le=500)] = 100
    max_insights: Annotated[int, msgspec.Meta(ge=1, le=20)] = 5


class ReflectSchedule(ReflectRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether memories are scored and reflected upon without being asked for, how often at most, and by which rules."""

    enabled: bool = False
    every_hours: EveryHours = 24


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a job is begun without being asked for, and how often at most."""

    enabled: bool = True
    every_hours: EveryHours = 24


class MaintenancePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to a tenant's memories without being asked for each time, and how long what is hidden is kept.

    Attributes:
        forget_grace_days: For how long what a request has forgotten can be restored.
        expired_grace_days: For how long an expired memory, which nobody sees, is kept before it is deleted for good.
        priorities: Moves priorities by use and feedback.
        prune: Forgets what is of no use.
        merge: Makes one of near-copies.
        expire: Deletes memories that expired `expired_grace_days` ago.
        purge: Deletes what is hidden and whose `purge_at` has passed.
        reflect: Has a language model, where the installation has one, score memories and come to insights.
    """

    forget_grace_days: Days = DEFAULT_GRACE_DAYS
    expired_grace_days: Days = DEFAULT_GRACE_DAYS
    priorities: PrioritySchedule = PrioritySchedule()
    prune: PruneSchedule = PruneSchedule()
    merge: MergeSchedule = MergeSchedule()
    expire: Schedule = Schedule()
    purge: Schedule = Schedule()
    reflect: ReflectSchedule = ReflectSchedule()


class MaintenancePatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to `maintenance`; what is not named stays, what is named is replaced as a whole, null is the default."""

    forget_grace_days: Days | UnsetType | None = UNSET
    expired_grace_days: Days | UnsetType | None = UNSET
    priorities: PrioritySchedule | UnsetType | None = UNSET
    prune: PruneSchedule | UnsetType | None = UNSET
    merge: MergeSchedule | UnsetType | None = UNSET
    expire: Schedule | UnsetType | None = UNSET
    purge: Schedule | UnsetType | None = UNSET
    reflect: ReflectSchedule | UnsetType | None = UNSET


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a tenant. A field that it has never set has the installation's default.

    Attributes:
        default_importance: Of a memory that is written without one, and that nothing scores.
        importance_scorer: What is the importance of a memory that is written without one. `default`: the above.
            `heuristic`: a guess from its words. `llm`: that guess at first, then what a language model says of it when
            the job `reflect` runs.
        weights: Of the parts of a score, for searches that name neither weights nor a preset.
        preset: A ranking known by name, in place of weights.
        decay_rate: Part of its recency that a memory loses in an hour.
        min_relevance: For searches that do not name it: what is less relevant is left out.
        require_user: Writes, searches and lists that name no `user_id` are refused, unless the key is bound to a user.
        context_template: What the lines of a block for a prompt look like; the platform's own where it is null.
        maintenance: What is done to memories without being asked for each time.
        short_term: How sessions hold what they observe.
    """

    default_importance: Importance = DEFAULT_IMPORTANCE
    importance_scorer: ImportanceScorer = "default"
    weights: Weights = Weights()
    preset: Preset | None = None
    decay_rate: DecayRate = DECAY_RATE
    min_relevance: Relevance = 0.0
    require_user: bool = False
    context_template: ContextTemplate | None = None
    maintenance: MaintenancePolicy = MaintenancePolicy()
    short_term: ShortTermRules = ShortTermRules()


class PolicyPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a policy; what is not named stays, and null goes back to the default. So within `maintenance`.

    `weights` and `short_term` are replaced as a whole.
    """

    default_importance: Importance | UnsetType | None = UNSET
    importance_scorer: ImportanceScorer | UnsetType | None = UNSET
    weights: Weights | UnsetType | None = UNSET
    preset: Preset | UnsetType | None = UNSET
    decay_rate: DecayRate | UnsetType | None = UNSET
    min_relevance: Relevance | UnsetType | None = UNSET
    require_user: bool | UnsetType | None = UNSET
    context_template: ContextTemplate | UnsetType | None = UNSET
    maintenance: MaintenancePatch | UnsetType | None = UNSET
    short_term: ShortTermRules | UnsetType | None = UNSET

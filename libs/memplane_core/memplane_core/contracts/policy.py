"""A tenant's policy: how its memories are kept and ranked where a request does not say. Limits are not policy."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from memplane_core.contracts.memories import Importance
from memplane_core.domain.memory import DEFAULT_IMPORTANCE
from memplane_core.domain.ranking import DECAY_RATE, Preset, Weights

DecayRate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Relevance = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a tenant. A field that it has never set has the installation's default.

    Attributes:
        default_importance: Of a memory that is written without one.
        weights: Of the parts of a score, for searches that name neither weights nor a preset.
        preset: A ranking known by name, in place of weights.
        decay_rate: Part of its recency that a memory loses in an hour.
        min_relevance: For searches that do not name it: what is less relevant is left out.
        require_user: Writes, searches and lists that name no `user_id` are refused, unless the key is bound to a user.
    """

    default_importance: Importance = DEFAULT_IMPORTANCE
    weights: Weights = Weights()
    preset: Preset | None = None
    decay_rate: DecayRate = DECAY_RATE
    min_relevance: Relevance = 0.0
    require_user: bool = False


class PolicyPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a policy; what is not named stays, and null goes back to the default."""

    default_importance: Importance | UnsetType | None = UNSET
    weights: Weights | UnsetType | None = UNSET
    preset: Preset | UnsetType | None = UNSET
    decay_rate: DecayRate | UnsetType | None = UNSET
    min_relevance: Relevance | UnsetType | None = UNSET
    require_user: bool | UnsetType | None = UNSET

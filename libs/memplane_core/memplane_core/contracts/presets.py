"""Policies by name: how the platform behaves by itself, and how two other designs of memory do (docs/presets.md)."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from memplane_core.contracts.checks import changed_fields, check_policy
from memplane_core.contracts.policy import (
    MaintenancePatch,
    MergeSchedule,
    PolicyPatch,
    PrioritySchedule,
    PruneSchedule,
    ReflectSchedule,
)
from memplane_core.domain.observations import ShortTermRules
from memplane_core.domain.ranking import Weights

PresetName = Literal["memplane", "dbgpt", "experience"]


class PolicyChange(PolicyPatch, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a policy, maybe from a whole one known by name on; null goes back to the default.

    What is not named stays. `weights` and `short_term` are replaced as a whole.

    Attributes:
        like: Sets all but `require_user` and `context_template` as one of these does: `memplane`, the defaults;
            `dbgpt`, the long-term and hybrid memory of DB-GPT; `experience`, a store of experiences with priorities.
            What is named besides comes after it. It is not kept: the fields that it sets are.
    """

    like: PresetName | UnsetType = UNSET


_MAINTENANCE: Final = MaintenancePatch(
    forget_grace_days=None,
    expired_grace_days=None,
    priorities=None,
    prune=None,
    merge=None,
    expire=None,
    purge=None,
    reflect=None,
)
_DEFAULTS: Final = PolicyPatch(
    default_importance=None,
    importance_scorer=None,
    weights=None,
    preset=None,
    decay_rate=None,
    min_relevance=None,
    maintenance=_MAINTENANCE,
    short_term=None,
)

PRESETS: Final[Mapping[PresetName, PolicyPatch]] = {
    "memplane": _DEFAULTS,
    # It has no priorities, and forgets and merges nothing.
    "dbgpt": msgspec.structs.replace(
        _DEFAULTS,
        preset="dbgpt",
        decay_rate=0.01,
        maintenance=msgspec.structs.replace(
            _MAINTENANCE,
            priorities=PrioritySchedule(enabled=False),
            prune=PruneSchedule(enabled=False),
            merge=MergeSchedule(enabled=False),
            reflect=ReflectSchedule(enabled=False),
        ),
        short_term=ShortTermRules(kind="enhanced", buffer_size=10, enhance_threshold=3, threshold=0.1),
    ),
    # It has no importance and no recency: likeness decides, and among what is alike the priority.
    "experience": msgspec.structs.replace(
        _DEFAULTS,
        weights=Weights(match=0.8, recency=0.0, importance=0.0, priority=0.2),
        maintenance=msgspec.structs.replace(
            _MAINTENANCE,
            priorities=PrioritySchedule(enabled=True),
            prune=PruneSchedule(enabled=True, age_by="occurred", max_idle_days=365, max_priority=2),
            merge=MergeSchedule(enabled=True),
        ),
    ),
}
"""Each names every field that it is about, so that nothing of an earlier policy is left there."""


def policy_changes(change: PolicyChange) -> dict[str, Any]:
    """What is to be stored for a change, by field, as builtin values; those of `maintenance` are changes in turn.

    Raises:
        InvalidRequest: It names nothing, or what could not be worked by.
    """
    named = _builtins(changed_fields(change))
    if isinstance(change.maintenance, MaintenancePatch):
        changed_fields(change.maintenance)
    check_policy(change)
    like = named.pop("like", None)
    if like is None:
        return named
    changes = _builtins(msgspec.structs.asdict(PRESETS[like]))
    if named.get("maintenance") is not None:
        named["maintenance"] = {**changes["maintenance"], **named["maintenance"]}
    if named.get("weights") is not None and "preset" not in named:
        named["preset"] = None  # as one of the two is meant
    elif named.get("preset") is not None and "weights" not in named:
        named["weights"] = None
    return {**changes, **named}


def _builtins(fields: Mapping[str, object]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(value) for name, value in fields.items() if value is not UNSET}

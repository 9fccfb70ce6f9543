"""Bodies that start the jobs which keep memories in order, and what each of those jobs works by."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from memplane_core.contracts.checks import check_thresholds
from memplane_core.contracts.policy import Days, MaintenancePolicy, PruneRules
from memplane_core.domain.errors import invalid
from memplane_core.domain.priority import PriorityRules, Threshold

T = TypeVar("T", bound=msgspec.Struct)

MaintenanceKind = Literal["priorities", "prune", "expire", "purge"]

_AS_OF: Final = "a moment with an offset or `Z`, in the years 1970 to 8999"
_YEARS: Final = range(1970, 9000)
"""Days can be added and taken away from a moment in them, whatever the rules say."""


class _Start(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all of them take.

    Attributes:
        dry_run: Only tell what would be done.
        as_of: Do as if it were that moment; of a dry run alone.
    """

    dry_run: bool = False
    as_of: Annotated[datetime, msgspec.Meta(tz=True, description=_AS_OF)] | None = None


class PrioritiesStart(_Start, frozen=True, kw_only=True, tag="priorities"):
    """Move the priority of each memory that is not pinned one step nearer to what its use and feedback have earned.

    The result counts the memories `checked`, and those `raised` and `lowered`. One that was moved less than twelve
    hours ago stays. What is left out of the rules is the policy's (`maintenance.priorities`).

    Attributes:
        thresholds: The activations from which a memory deserves the priorities 2, 3, 4 and 5, ascending.
        feedback_weight: How much feedback counts; 0 for not at all.
    """

    thresholds: tuple[Threshold, Threshold, Threshold, Threshold] | None = None
    feedback_weight: Annotated[float, msgspec.Meta(ge=0, le=10)] | None = None


class PruneStart(_Start, frozen=True, kw_only=True, tag="prune"):
    """Forget memories that are of no use; each can be restored until its `purge_at`. Pinned ones never are forgotten.

    The result counts the memories `checked` and `forgotten`. What is left out of the rules is the policy's
    (`maintenance.prune`).

    Attributes:
        age_by: `accessed`: those that were last recalled, written, changed or restored at least `max_idle_days` ago.
            `occurred`: those that happened so long ago, and had nothing of this done for 30 days, or for
            `max_idle_days` where that is less.
        max_idle_days: See `age_by`.
        max_priority: Only those of at most this priority.
        grace_days: For how long what was forgotten can be restored.
    """

    age_by: Literal["accessed", "occurred"] | None = None
    max_idle_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] | None = None
    max_priority: Annotated[int, msgspec.Meta(ge=1, le=5)] | None = None
    grace_days: Days | None = None


class ExpireStart(_Start, frozen=True, kw_only=True, tag="expire"):
    """Delete memories for good that expired some time ago, pinned ones too. The result counts those `deleted`.

    Attributes:
        grace_days: How long ago; the policy's `maintenance.expired_grace_days` where it is left out.
    """

    grace_days: Days | None = None


class PurgeStart(_Start, frozen=True, kw_only=True, tag="purge"):
    """Delete memories for good that are forgotten or merged and whose `purge_at` has passed.

    The result counts those `deleted`.
    """


MaintenanceStart = PrioritiesStart | PruneStart | ExpireStart | PurgeStart


class PrioritiesParams(PriorityRules, frozen=True, kw_only=True):
    """What moving priorities works by. `as_of` is None for the moment at which the run begins."""

    as_of: datetime | None = None


class PruneParams(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning works by. `as_of` is None for the moment at which the run begins."""

    rules: PruneRules
    as_of: datetime | None = None


class ExpireParams(msgspec.Struct, frozen=True, kw_only=True):
    """What expiring works by. `as_of` is None for the moment at which the run begins."""

    grace_days: int
    as_of: datetime | None = None


class PurgeParams(msgspec.Struct, frozen=True, kw_only=True):
    """What purging works by: `as_of`, None for the moment at which the run begins."""

    as_of: datetime | None = None


def kind_of(start: MaintenanceStart) -> MaintenanceKind:
    """The kind of job that a body asks for."""
    match start:
        case PrioritiesStart():
            return "priorities"
        case PruneStart():
            return "prune"
        case ExpireStart():
            return "expire"
        case PurgeStart():
            return "purge"


def params_of(
    kind: MaintenanceKind, policy: MaintenancePolicy, given: MaintenanceStart | None = None
) -> dict[str, Any]:
    """What a run works by: what was given, and the policy's where nothing was.

    Raises:
        InvalidRequest: A run that is no dry run is to happen at another moment, or that is out of range, or thresholds
            do not ascend.
    """
    if given is not None and given.as_of is not None and not given.dry_run:
        raise invalid("/as_of", "is for a dry run alone")
    as_of = given.as_of if given is not None else None
    if as_of is not None and as_of.year not in _YEARS:
        raise invalid("/as_of", f"must be {_AS_OF}")
    as_of = as_of and as_of.astimezone(UTC)
    match kind:
        case "priorities":
            rules = _rules(PriorityRules, policy.priorities, given)
            check_thresholds(rules.thresholds, pointer="/thresholds")
            params = PrioritiesParams(**msgspec.structs.asdict(rules), as_of=as_of)
        case "prune":
            params = PruneParams(rules=_rules(PruneRules, policy.prune, given), as_of=as_of)
        case "expire":
            days = given.grace_days if isinstance(given, ExpireStart) else None
            params = ExpireParams(grace_days=policy.expired_grace_days if days is None else days, as_of=as_of)
        case "purge":
            params = PurgeParams(as_of=as_of)
    return msgspec.to_builtins(params)


def _rules(type_: type[T], policy: msgspec.Struct, given: MaintenanceStart | None) -> T:
    """Rules of which those that were given count before the policy's."""
    values: dict[str, Any] = {}
    for name in type_.__struct_fields__:
        value = getattr(given, name, None)
        values[name] = getattr(policy, name) if value is None else value
    return type_(**values)

"""The body that starts a reflection, and what it works by."""

from typing import Annotated, Any

import msgspec

from memplane_core.contracts.policy import MaintenancePolicy, ReflectRules


class ReflectStart(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="reflect"
):
    """Have a language model score memories, and come to insights over what was written since the last time.

    Scored are memories that were written without an importance under the policy's `importance_scorer: llm`. Reflected
    upon are those of each user and agent whose importance has gathered to the threshold. An insight is a memory of the
    type `insight` with the source `reflection`; its metadata names in `derived_from` the memories that it follows from.

    The result counts memories `scored`, those whose answer was no number from 1 to 10 (`rejected`), those that the
    model's server would not answer about (`refused`), and those that were `changed` before the answer came;
    `reflections` and the `insights` stored, those that were there already (`repeated`), those that cited nothing that
    the model had been shown (`dropped`), and answers that could not be read (`unreadable`); `questions`,
    `prompt_tokens` and `completion_tokens`. The sample is of the insights. A dry run counts what it would ask about:
    `unscored` memories, `scopes` (users with their agents) and their `memories`, and `questions`.

    What is left out of the rules is the policy's (`maintenance.reflect`).

    Attributes:
        threshold: Importance that has to have gathered.
        max_memories: Most that the model is shown at once.
        max_insights: Most that it may come to from those.
        dry_run: Only tell what would be asked about.
    """

    threshold: Annotated[float, msgspec.Meta(gt=0, le=10_000)] | None = None
    max_memories: Annotated[int, msgspec.Meta(ge=1, le=500)] | None = None
    max_insights: Annotated[int, msgspec.Meta(ge=1, le=20)] | None = None
    dry_run: bool = False


def reflect_params(policy: MaintenancePolicy, given: ReflectStart | None = None) -> dict[str, Any]:
    """What a run works by: what was given, and the policy's where nothing was."""
    values: dict[str, Any] = {}
    for name in ReflectRules.__struct_fields__:
        value = None if given is None else getattr(given, name)
        values[name] = getattr(policy.reflect, name) if value is None else value
    return msgspec.to_builtins(ReflectRules(**values))

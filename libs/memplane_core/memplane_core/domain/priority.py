"""How useful a memory has proved: its priority, 1..5, from when and how often it was used and what was said of it.

The base-level activation of ACT-R, in its form for uses spread evenly over a memory's life ("optimized learning"):

    B = ln(n / (1 - d)) - d * ln(L)

J. R. Anderson and C. Lebiere, The Atomic Components of Thought (1998), chapter 4. n is the number of uses with the
first one, the writing; L is the memory's age, here in hours; d is the decay, 0.5 there and here. Feedback is added as

    w * ln((1 + helpful) / (1 + not_helpful))

so that with w = 1 the first `helpful` counts like twice the uses, the first `not_helpful` like half of them, and each
further one less.
"""

import math
from typing import Annotated, Final

import msgspec

LOWEST: Final = 1
HIGHEST: Final = 5

DECAY: Final = 0.5
"""d: how fast a memory fades with its age."""

LEAST_AGE_H: Final = 24.0
"""A younger memory counts as this old, in hours: whatever was just written would be the most active of all."""

REST_H: Final = 12.0
"""Hours that lie at least between two steps of one memory's priority, so that repeating a run moves nothing twice."""

Threshold = Annotated[float, msgspec.Meta(ge=-100, le=100)]


class PriorityRules(msgspec.Struct, frozen=True, kw_only=True):
    """What activation makes which priority.

    Attributes:
        thresholds: The activations from which a memory deserves the priorities 2, 3, 4 and 5, ascending.
        feedback_weight: How much feedback counts; 0 for not at all.
    """

    thresholds: tuple[Threshold, Threshold, Threshold, Threshold] = (-3.25, -2.5, -0.75, -0.25)
    feedback_weight: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a memory's use.

    Attributes:
        age_h: Hours since it was written.
        recalls: How often it was recalled since then.
        helpful: How often it was called helpful.
        not_helpful: How often it was called not helpful.
    """

    age_h: float
    recalls: int
    helpful: int = 0
    not_helpful: int = 0


def activation(usage: Usage, *, feedback_weight: float = 1.0) -> float:
    """B of the formula above, with feedback."""
    uses = 1 + usage.recalls
    age_h = max(usage.age_h, LEAST_AGE_H)
    opinion = math.log((1 + usage.helpful) / (1 + usage.not_helpful))
    return math.log(uses / (1 - DECAY)) - DECAY * math.log(age_h) + feedback_weight * opinion


def deserved(usage: Usage, rules: PriorityRules) -> int:
    """The priority that a memory's use has earned it, 1..5."""
    active = activation(usage, feedback_weight=rules.feedback_weight)
    return LOWEST + sum(active >= threshold for threshold in rules.thresholds)


def stepped(priority: int, usage: Usage, rules: PriorityRules) -> int:
    """A priority after a run: one step nearer to what is deserved."""
    goal = deserved(usage, rules)
    return priority + (goal > priority) - (goal < priority)

"""Bodies of the route that says why a memory was not recalled."""

from typing import Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import Degraded, ScoreParts, SearchRequest
from memplane_core.domain.memory import IndexState

Outcome = Literal[
    "recalled", "missing", "forgotten", "merged", "expired", "filter", "validity", "not_nominated", "min_relevance",
    "rank",
]  # fmt: skip
"""Where a memory fell out of a search:

`missing`: there is none of this id for this key. `forgotten`, `merged`: its marker hides it. `expired`: its time is
over. `filter`: the filters do not match it. `validity`: it does not hold at the moment asked for. `not_nominated`:
neither the index nor words nor the fresh rows named it. `min_relevance`: it was found, and is less relevant than asked
for. `rank`: it was found, and others are better.
"""


class WhyRequest(SearchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A memory, and the search that it was missed in. Whatever `touch` says, no trace is left in any memory.

    Attributes:
        memory_id: The memory.
    """

    memory_id: UUID


class WhyResponse(msgspec.Struct, frozen=True, kw_only=True):
    """How far a memory came in a search, which was run for this answer.

    Attributes:
        outcome: Where it fell out; `recalled` where it did not.
        unmatched: Top-level conditions of the filters that do not match it.
        rank: Its place among all that were found, 1 for the best; null where it was not found.
        pool: How many were found and passed every condition.
        top_k: How many of them the search gives.
        score: Its own; null where it was not found, like `relevance` and `explain`.
        least_score: Of the last that the search gave; null where it gave none.
        min_relevance: That the search asked for, itself or by the policy.
        index_state: Of the memory; null where it is missing.
        degraded: What the search had to do without.
    """

    outcome: Outcome
    unmatched: list[str]
    rank: int | None
    pool: int
    top_k: int
    score: float | None
    relevance: float | None
    explain: ScoreParts | None
    least_score: float | None
    min_relevance: float
    index_state: IndexState | None
    degraded: list[Degraded]

"""A search with everything in hand that answering it needs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from memplane_core.domain.filters import Filter
from memplane_core.domain.index import FloatArray, Generation, IndexFilter
from memplane_core.domain.ranking import Origin, Preset, Question, Ranked, Weights
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.validity import ValidAt
from memplane_core.storage.candidates import Asked


class Trace(msgspec.Struct):
    """What a search leaves behind for whoever asks how it came about; filled while it goes on.

    Attributes:
        origins: All that were nominated, and by whom.
        ranked: Those of them that passed every condition, best first.
        min_relevance: Below which they were left out.
    """

    origins: Mapping[UUID, Origin] = {}
    ranked: Sequence[Ranked] = ()
    min_relevance: float = 0.0


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for, and how it is ranked.

    Attributes:
        vector: Of the query's text; None where meaning does not count, or the embedder is away.
        question: What candidates are ranked for; its terms are empty where words do not count.
        superset: What the index can apply of `where`, without a clock.
        candidates: How many each arm nominates at first.
        valid_at: When what is found has to hold.
        rerank: Whether the reranker reads the best once more.
        trace: Takes down how the answer comes about; None where nobody asks.
    """

    tenant: TenantId
    generation: Generation
    vector: FloatArray | None
    question: Question
    where: Filter
    superset: IndexFilter
    top_k: int
    candidates: int
    min_relevance: float
    now: datetime
    valid_at: ValidAt
    weights: Weights
    preset: Preset | None
    decay_rate: float
    rerank: bool
    explain: bool
    trace: Trace | None = None

    def asked(self, limit: int) -> Asked:
        """The same, as Postgres nominates for it."""
        return Asked(
            generation=self.generation.number,
            vector=self.vector,
            terms=self.question.terms,
            where=self.where,
            limit=limit,
            valid_at=self.valid_at,
        )

"""Why a memory was not recalled: the search is run once more, and the memory is looked for at each step of it."""

from collections.abc import Mapping
from typing import Any

from memplane_core.contracts.memories import SearchResponse
from memplane_core.contracts.why import Outcome, WhyRequest, WhyResponse
from memplane_core.domain.binding import sees
from memplane_core.domain.filters import matches, parse_filter
from memplane_core.domain.memory import Memory, to_utc
from memplane_core.domain.tenancy import Principal
from memplane_core.domain.validity import valid_at_of
from memplane_core.storage import memories
from memplane_core.storage.session import Database
from memplane_retrieval.query import Trace
from memplane_retrieval.search import Searcher, parts_of


class Explainer:
    """Runs searches that leave no trace, and tells how far one memory came in them."""

    def __init__(self, database: Database, searcher: Searcher) -> None:
        self._database = database
        self._searcher = searcher

    async def explain(self, principal: Principal, asked: WhyRequest) -> WhyResponse:
        """Where a memory falls out of a search.

        Raises:
            MemplaneError: Whatever the search itself raises.
        """
        trace = Trace()
        found = await self._searcher.search(principal, asked.as_search(), trace=trace)
        memory, hidden = await self._look(principal, asked)
        unmatched = [] if memory is None else _unmatched(asked.filters, memory)
        place = next((n for n, its in enumerate(trace.ranked) if its.candidate.memory_id == asked.memory_id), None)
        ranked = None if place is None or memory is None else trace.ranked[place]
        return WhyResponse(
            outcome=_outcome(asked, found, trace=trace, hidden=hidden, unmatched=unmatched, place=place),
            unmatched=unmatched,
            rank=None if ranked is None or place is None else place + 1,
            pool=len(trace.ranked),
            top_k=asked.top_k,
            score=ranked and ranked.score,
            relevance=ranked and ranked.relevance,
            explain=ranked and parts_of(ranked, origin=trace.origins[asked.memory_id], rerank=None),
            least_score=found.results[-1].score if found.results else None,
            min_relevance=trace.min_relevance,
            index_state=memory and memory.index_state,
            degraded=found.degraded,
        )

    async def _look(self, principal: Principal, asked: WhyRequest) -> tuple[Memory | None, Outcome | None]:
        """The memory as it is, and what keeps it out of every search like this."""
        clock = None if asked.now is None else to_utc(asked.now, pointer="/now")
        valid_at = valid_at_of(asked.valid_at, now=clock, pointer="/valid_at")
        tenant = principal.tenant
        async with self._database.tenant(tenant) as connection:
            its = await memories.read_standing(tenant, connection, asked.memory_id, valid_at=valid_at)
        if its is None or not sees(principal, its.memory):
            return None, "missing"
        if its.memory.state != "active":
            return its.memory, its.memory.state
        if its.expired:
            return its.memory, "expired"
        return its.memory, None if its.holds else "validity"


def _unmatched(filters: Mapping[str, Any], memory: Memory) -> list[str]:
    return [name for name, condition in filters.items() if not matches(parse_filter({name: condition}), memory)]


def _outcome(
    asked: WhyRequest,
    found: SearchResponse,
    *,
    trace: Trace,
    hidden: Outcome | None,
    unmatched: list[str],
    place: int | None,
) -> Outcome:
    if hidden is not None and hidden != "validity":
        return hidden
    if unmatched:
        return "filter"
    if hidden is not None:
        return hidden
    if any(result.id == asked.memory_id for result in found.results):
        return "recalled"
    if place is None:
        return "not_nominated"
    return "min_relevance" if trace.ranked[place].relevance < trace.min_relevance else "rank"

"""Why a memory was not recalled: the search is run once more, and the memory is looked for at each step of it."""

from typing import Any

from memplane_core.contracts.memories import SearchRequest, SearchResponse
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
        fields: dict[str, Any] = {name: getattr(asked, name) for name in SearchRequest.__struct_fields__}
        fields |= {"touch": False, "explain": True, "include_short_term": None}
        request = SearchRequest(**fields)
        trace = Trace()
        found = await self._searcher.search(principal, request, trace=trace)
        memory, hidden = await self._look(principal, asked)
        unmatched = [] if memory is None else _unmatched(request.filters, memory)
        place = next((n for n, its in enumerate(trace.ranked) if its.candidate.memory_id == asked.memory_id), None)
        ranked = None if place is None or memory is None else trace.ranked[place]
        return WhyResponse(
            outcome=_outcome(asked, found, trace=trace, hidden=hidden, unmatched=unmatched, place=place),
            unmatched=unmatched,
            rank=None if ranked is None or place is None else place + 1,
            pool=len(trace.ranked),
            top_k=request.top_k,
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
        tenant, ids = principal.tenant, [asked.memory_id]
        async with self._database.tenant(tenant) as connection:
            there = await memories.read(tenant, connection, ids, also_expired=True)
            alive = await memories.read(tenant, connection, ids)
            holds = await memories.read(tenant, connection, ids, valid_at=valid_at)
        memory = there.get(asked.memory_id)
        if memory is None or not sees(principal, memory):
            return None, "missing"
        if memory.state != "active":
            return memory, memory.state
        if asked.memory_id not in alive:
            return memory, "expired"
        return memory, None if asked.memory_id in holds else "validity"


def _unmatched(filters: dict[str, Any], memory: Memory) -> list[str]:
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

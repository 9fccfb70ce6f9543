"""What a prompt should remember now: what a search finds, packed into a budget."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from memplane_core.contracts.context import ContextItem, ContextRequest, ContextResponse
from memplane_core.contracts.memories import FoundMemory, SearchRequest
from memplane_core.domain.context import ContextTemplate, Entry, GroupBy, Placed, Section, check_template, pack
from memplane_core.domain.tenancy import Principal
from memplane_retrieval.generations import Generations
from memplane_retrieval.search import Searcher

_SEARCHED: Final = (
    "query", "top_k", "filters", "mode", "weights", "preset", "min_relevance", "now", "valid_at", "rerank",
)  # fmt: skip
"""Fields that a request has in common with a search."""


class ContextPacker:
    """Answers requests for a block of text.

    Args:
        searcher: Finds what is worth remembering.
        generations: Tells the tenant's policy.
    """

    def __init__(self, searcher: Searcher, generations: Generations) -> None:
        self._searcher = searcher
        self._generations = generations

    async def pack(self, principal: Principal, request: ContextRequest) -> ContextResponse:
        """The block for a request. Uses nothing but what is in it.

        Raises:
            InvalidRequest: The template names what is not known, or see `Searcher.search`; so for all other errors.
        """
        if request.template is not None:
            check_template(request.template, pointer="/template")
        asked = SearchRequest(**{name: getattr(request, name) for name in _SEARCHED}, touch=False)
        answer = await self._searcher.search(principal, asked)
        policy = await self._generations.policy(principal.tenant)
        block = pack(
            [
                Section(
                    entries=[_entry(found, request.group_by) for found in answer.results],
                    most=request.max_tokens,
                    order=request.order,
                )
            ],
            max_tokens=request.max_tokens,
            template=request.template or policy.context_template or ContextTemplate(),
            counter=request.counter,
            allow_truncation=request.allow_truncation,
        )
        found = {str(memory.id): memory for memory in answer.results}
        if request.touch:
            self._searcher.touch(principal.tenant, [found[placed.entry.id] for placed in block.placed])
        return ContextResponse(
            text=block.text,
            tokens=block.tokens,
            counter=request.counter,
            items=_items(block.placed, found),
            left_out=block.left_out,
            degraded=answer.degraded,
        )


def _entry(memory: FoundMemory, group_by: GroupBy) -> Entry:
    group = "" if group_by == "none" else getattr(memory, group_by) or ""
    return Entry(
        id=str(memory.id),
        group=group,
        content=memory.content,
        occurred_at=memory.occurred_at,
        actor=memory.actor,
        memory_type=memory.memory_type,
        source=memory.source,
        scene=memory.scene,
        user_id=memory.user_id,
        agent_id=memory.agent_id,
        session_id=memory.session_id,
        importance=memory.importance,
        priority=memory.priority,
        relevance=memory.relevance,
    )


def _items(placed: Sequence[Placed], found: Mapping[str, FoundMemory]) -> list[ContextItem]:
    return [
        ContextItem(
            n=its.n,
            id=UUID(its.entry.id),
            kind="memory",
            truncated=its.truncated,
            occurred_at=its.entry.occurred_at,
            score=found[its.entry.id].score,
            relevance=found[its.entry.id].relevance,
        )
        for its in placed
    ]

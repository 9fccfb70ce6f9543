"""What a prompt should remember now: what a session holds and what a search finds, packed into a budget."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from memplane_core.contracts.context import ContextItem, ContextRequest, ContextResponse
from memplane_core.contracts.memories import FoundMemory
from memplane_core.domain.context import (
    SESSION_GROUP,
    ContextTemplate,
    Entry,
    GroupBy,
    Placed,
    Section,
    check_template,
    pack,
)
from memplane_core.domain.observations import Observation
from memplane_core.domain.tenancy import Principal
from memplane_retrieval.generations import Generations
from memplane_retrieval.search import Searcher
from memplane_retrieval.short_term import ShortTerm

_AT_ONCE: Final = 100_000
_MOST_AT_ONCE: Final = 100
"""Code points, and entries, that are packed in between; more would keep every other request of the process waiting."""


class ContextPacker:
    """Answers requests for a block of text.

    Args:
        searcher: Finds what is worth remembering.
        short_term: Tells what sessions hold.
        generations: Tells the tenant's policy.
    """

    def __init__(self, searcher: Searcher, short_term: ShortTerm, generations: Generations) -> None:
        self._searcher = searcher
        self._short_term = short_term
        self._generations = generations

    async def pack(self, principal: Principal, request: ContextRequest) -> ContextResponse:
        """The block for a request. Uses nothing but what is in it.

        Raises:
            InvalidRequest: The template names what is not known, or see `Searcher.search`; so for all other errors.
        """
        if request.template is not None:
            check_template(request.template, pointer="/template")
        # The session first: what becomes a memory in between is then in both, and not in neither.
        held = await self._held(principal, request)
        answer = await self._searcher.search(principal, request.as_search())
        policy = await self._generations.policy(principal.tenant)
        found = {str(memory.id): memory for memory in answer.results}
        observed = [_observed(its) for its in reversed(held) if str(its.id) not in found]
        recalled = [_entry(memory, request.group_by) for memory in answer.results]
        share = int(request.short_term_share * request.max_tokens)
        packing = partial(
            pack,
            [
                Section(entries=observed, most=share, order="time"),
                Section(entries=recalled, most=request.max_tokens, order=request.order),
            ],
            max_tokens=request.max_tokens,
            template=request.template or policy.context_template or ContextTemplate(),
            counter=request.counter,
            allow_truncation=request.allow_truncation,
        )
        entries = (*observed, *recalled)
        short = len(entries) <= _MOST_AT_ONCE and sum(len(its.content) for its in entries) <= _AT_ONCE
        plain = request.template is None and policy.context_template is None
        block = packing() if short and plain else await asyncio.to_thread(packing)
        if request.touch:
            given = [its.entry.id for its in block.placed]
            self._searcher.touch(principal.tenant, [found[name] for name in given if name in found])
        return ContextResponse(
            text=block.text,
            tokens=block.tokens,
            counter=request.counter,
            items=_items(block.placed, found),
            left_out=block.left_out,
            degraded=answer.degraded,
        )

    async def _held(self, principal: Principal, request: ContextRequest) -> list[Observation]:
        session = request.include_short_term
        if session is None:
            return []
        return await self._short_term.read(principal, session, pointer="/include_short_term/")


def _observed(its: Observation) -> Entry:
    return Entry(
        id=str(its.id),
        group=SESSION_GROUP,
        content=its.content,
        occurred_at=its.occurred_at,
        actor=its.actor,
        memory_type=its.memory_type,
        source=its.source,
        scene=its.scene,
        user_id=its.user_id,
        agent_id=its.agent_id,
        session_id=its.session_id,
        importance=its.importance,
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
            kind="observation" if (memory := found.get(its.entry.id)) is None else "memory",
            truncated=its.truncated,
            occurred_at=its.entry.occurred_at,
            score=memory and memory.score,
            relevance=memory and memory.relevance,
        )
        for its in placed
    ]

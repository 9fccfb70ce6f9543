"""Making memories of observations."""

from collections.abc import Sequence

from memplane_core.domain.chunking import FindableText, findable
from memplane_core.domain.memory import DEFAULT_PRIORITY, head_of
from memplane_core.domain.observations import Observation
from memplane_core.domain.tenancy import Principal
from memplane_core.domain.text import terms
from memplane_core.storage import memory_writes
from memplane_core.storage.new_memories import NewMemory
from memplane_core.storage.observations import StoredObservation
from memplane_core.storage.session import Connection
from memplane_core.storage.usage_days import add_tokens
from memplane_retrieval.embedding import TextToChunk, tokens_later


async def promote(
    principal: Principal, connection: Connection, leaving: Sequence[StoredObservation], *, generation: int
) -> None:
    """Make memories of observations, of the same ids, in the transaction that takes them out of their session.

    One that was not embedded, or for another generation, is stored as a memory is whose text cannot be embedded in
    time: found by its words at once, by its meaning when the drain has embedded it. It is charged as such.

    Args:
        principal: Whose they are.
        connection: The transaction, which holds the session's lock.
        leaving: In the order in which they are to be made.
        generation: The active one.
    """
    if not leaving:
        return
    texts = {its.observation.id: _text_of(its, generation=generation) for its in leaving}
    # A memory that has such an id already has come with an import: it is this very one.
    made = await memory_writes.insert(
        principal, connection, [_as_memory(its) for its in leaving], generation=generation, texts=texts
    )
    later = sum(
        tokens_later(TextToChunk(its.observation.content, its.observation.actor, its.observation.occurred_at))
        for its in leaving
        if its.observation.id in made and not texts[its.observation.id].embedded
    )
    if later:
        await add_tokens(principal.tenant, connection, later)


def _text_of(its: StoredObservation, *, generation: int) -> FindableText:
    observation = its.observation
    head = head_of(observation.actor, observation.occurred_at)
    if its.chunks and its.generation == generation:
        return FindableText(terms(head + observation.content), its.chunks)
    return findable(observation.content, head=head, embedded=None)


def _as_memory(its: StoredObservation) -> NewMemory:
    """The memory: of the observation's id, and beside any that says the same, since each was an event of its own."""
    fields = {
        name: getattr(its.observation, name)
        for name in Observation.__struct_fields__
        if name not in ("strengthened", "observed_at")
    }
    return NewMemory(
        **fields,
        external_id=None,
        priority=DEFAULT_PRIORITY,
        pinned=False,
        occurred_given=its.occurred_given,
        expires_at=None,
        dedup_key=None,
        unscored=its.unscored,
    )

"""What a reflection stores, the way that every other memory is stored."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
import uuid_utils.compat

from memplane_core.domain.chunking import FindableText, findable
from memplane_core.domain.memory import DEFAULT_PRIORITY, dedup_key, head_of
from memplane_core.domain.tenancy import Principal
from memplane_core.storage import memories, memory_writes
from memplane_core.storage.erasure_reach import CITES
from memplane_core.storage.generations import active_generation
from memplane_core.storage.memories import Revision
from memplane_core.storage.memory_writes import Change
from memplane_core.storage.new_memories import NewMemory
from memplane_core.storage.reflection import INSIGHT, SOURCE, Text, Whose
from memplane_core.storage.session import Connection
from memplane_core.storage.usage_days import add_tokens
from memplane_maintenance.jobs.job import Run
from memplane_maintenance.jobs.reflect_prompts import Insight


async def store_scores(run: Run, connection: Connection, texts: Sequence[Text], *, scores: Mapping[UUID, float]) -> int:
    """Give memories the importance that the model says, unless they were changed since it was asked.

    Args:
        run: Which tells their histories who did it.
        connection: A transaction of the tenant that holds the run.
        texts: In the order of their ids.
        scores: By id.

    Returns:
        How many it was.
    """
    changes: list[Change] = []
    for text in texts:
        before = await memories.read_revision(run.tenant, connection, text.id, lock=True)
        if before is not None and _is_as_read(before, text):
            changes.append(_scored(before, scores[text.id]))
    generation = await active_generation(run.tenant, connection)
    await memory_writes.update(author_of(run), connection, changes, generation=generation.number)
    return len(changes)


async def store_insights(
    run: Run, connection: Connection, whose: Whose, *, insights: Sequence[Insight], now: datetime
) -> list[UUID]:
    """Store insights as memories of those whose memories they cite. Words find them at once, the drain embeds them.

    Args:
        run: Which tells their histories who did it.
        connection: A transaction of the tenant that holds the run.
        whose: They will be.
        insights: To store; one that is there already is not stored again.
        now: When they came about.

    Returns:
        Ids of those that were new.

    Raises:
        QuotaExceeded: When the transaction ends, where the tenant may not have so much stored.
    """
    tenant = run.tenant
    fresh = {memory.dedup_key: memory for memory in (_as_memory(insight, whose, now=now) for insight in insights)}
    keys = sorted(key for key in fresh if key is not None)
    twins = await memories.find_twins(tenant, connection, keys, lock=True)
    expired = [twin.memory.id for twin in twins.values() if twin.expired]
    if expired:
        await memory_writes.release_places(tenant, connection, expired)
    new = [fresh[key] for key in keys]
    if not new:
        return []
    generation = await active_generation(tenant, connection)
    made = await memory_writes.insert(
        author_of(run),
        connection,
        new,
        generation=generation.number,
        texts={memory.id: _found_by(memory) for memory in new},
    )
    # They are embedded later: a token for four bytes, as for any text of which that is so.
    await add_tokens(tenant, connection, sum(len(each.content.encode()) // 4 + 1 for each in new if each.id in made))
    return list(made)


def author_of(run: Run) -> Principal:
    """Who writes, as histories tell: the key that asked for the run, or `memplane`, and which run it is."""
    return Principal(
        tenant=run.tenant,
        scopes=frozenset(),
        key_id=run.record.started_by,
        request_id=f"reflect:{run.record.id}",
    )


def _is_as_read(before: Revision, text: Text) -> bool:
    return before.unscored and before.memory.version == text.version and before.memory.state == "active"


def _scored(before: Revision, importance: float) -> Change:
    return Change(
        before=before,
        after=msgspec.structs.replace(before.memory, importance=importance),
        occurred_given=before.occurred_given,
        dedup_key=before.dedup_key,
        revive=False,
        reindex=False,
        text=None,
        changed={"importance": before.memory.importance},
    )


def _as_memory(insight: Insight, whose: Whose, *, now: datetime) -> NewMemory:
    return NewMemory(
        id=uuid_utils.compat.uuid7(),
        external_id=None,
        content=insight.text,
        actor=None,
        scene=[],
        source=SOURCE,
        memory_type=INSIGHT,
        user_id=whose.user_id,
        agent_id=whose.agent_id,
        session_id=None,
        importance=max(text.importance for text in insight.sources),
        priority=DEFAULT_PRIORITY,
        pinned=False,
        metadata={CITES: [str(text.id) for text in insight.sources]},
        occurred_at=now,
        occurred_given=False,
        expires_at=None,
        dedup_key=dedup_key(
            content=insight.text,
            actor=None,
            memory_type=INSIGHT,
            user_id=whose.user_id,
            agent_id=whose.agent_id,
            session_id=None,
            occurred_at=None,
        ),
    )


def _found_by(memory: NewMemory) -> FindableText:
    return findable(memory.content, head=head_of(memory.actor, memory.occurred_at), embedded=None)

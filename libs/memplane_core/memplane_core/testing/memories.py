"""Memories written by the real statements, without a service in front."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
import uuid_utils.compat

from memplane_core.domain.chunking import FindableText, findable
from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.index import Generation, IndexKey
from memplane_core.domain.memory import head_of
from memplane_core.domain.ports import Embedder
from memplane_core.domain.tenancy import SCOPES, Principal, TenantId
from memplane_core.storage import memories, memory_writes
from memplane_core.storage.generations import active_generation
from memplane_core.storage.memory_writes import Change
from memplane_core.storage.new_memories import NewMemory
from memplane_core.storage.removals import remove_memories
from memplane_core.storage.session import Database


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """An outbox row in short."""

    memory_id: UUID
    rev: int
    op: str
    chunks: int
    attempts: int
    done: bool
    error: str | None


class MemoryDesk:
    """Writes, edits and removes memories of one tenant, and knows what the index ought to hold of them."""

    def __init__(self, database: Database, tenant: TenantId, embedder: Embedder) -> None:
        self.database = database
        self.tenant = tenant
        self._embedder = embedder
        self._principal = Principal(tenant=tenant, scopes=SCOPES, key_id="desk", request_id="desk-request")

    async def generation(self) -> Generation:
        """The tenant's active generation, as it is now."""
        async with self.database.tenant(self.tenant) as connection:
            return await active_generation(self.tenant, connection)

    async def write(self, *texts: str, embedded: bool = True, **fields: Any) -> list[UUID]:
        """Write one memory a text in one transaction; `embedded` is False where the embedder was away."""
        async with self.transaction(*texts, embedded=embedded, **fields) as ids:
            return ids

    @asynccontextmanager
    async def transaction(self, *texts: str, embedded: bool = True, **fields: Any) -> AsyncGenerator[list[UUID]]:
        """Write as `write` does, and commit when the block ends."""
        new = [_new(text, fields) for text in texts]
        generation = await self.generation()
        found_by = {memory.id: await self._text(memory.content, memory, embedded and generation) for memory in new}
        async with self.database.tenant(self.tenant) as connection:
            await memory_writes.insert(self._principal, connection, new, generation=generation.number, texts=found_by)
            yield [memory.id for memory in new]

    async def edit(self, memory_id: UUID, *, embedded: bool = True, **fields: Any) -> None:
        """Change fields of a memory that the index holds; it gets the next revision."""
        generation = await self.generation()
        async with self.database.tenant(self.tenant) as connection:
            before = await memories.read_revision(self.tenant, connection, memory_id, lock=True)
            assert before is not None
            after = msgspec.structs.replace(before.memory, **fields)
            text = None
            if "content" in fields:
                text = await self._text(after.content, after, embedded and generation)
            change = Change(
                before=before,
                after=after,
                occurred_given=True,
                dedup_key=None,
                reindex=True,
                revive=False,
                text=text,
                changed=dict.fromkeys(fields),
            )
            await memory_writes.update(self._principal, connection, [change], generation=generation.number)

    async def remove(self, memory_id: UUID) -> None:
        """Delete a memory for good."""
        async with self.database.tenant(self.tenant) as connection:
            assert await remove_memories(self.tenant, connection, [memory_id])

    async def current_keys(self, generation: int = 1) -> set[IndexKey]:
        """What the index ought to hold in a generation once all is told."""
        async with self.database.tenant(self.tenant) as connection:
            rows = await connection.fetch(
                """
                SELECT c.memory_id, c.rev, c.n FROM chunk c
                JOIN memory m ON m.tenant_id = $1 AND m.id = c.memory_id AND m.rev = c.rev AND m.state = 'active'
                WHERE c.tenant_id = $1 AND c.generation = $2 AND c.embedding IS NOT NULL
                """,
                self.tenant,
                generation,
            )
        return {IndexKey(row["memory_id"], row["rev"], row["n"]) for row in rows}

    async def outbox(self) -> list[OutboxRow]:
        """All of the tenant's outbox, in order."""
        async with self.database.tenant(self.tenant) as connection:
            rows = await connection.fetch(
                """
                SELECT memory_id, rev, op, chunks, attempts, done_at IS NOT NULL AS done, error
                FROM outbox WHERE tenant_id = $1 ORDER BY seq
                """,
                self.tenant,
            )
        return [OutboxRow(**{name: row[name] for name in OutboxRow.__struct_fields__}) for row in rows]

    async def pass_time(self) -> None:
        """Make everything due that waits for its time, and let leases end; what is being changed just now is left."""
        async with self.database.tenant(self.tenant) as connection:
            await connection.execute(
                """
                UPDATE outbox SET not_before = clock_timestamp() WHERE tenant_id = $1 AND seq IN (
                    SELECT seq FROM outbox WHERE tenant_id = $1 AND done_at IS NULL FOR UPDATE SKIP LOCKED)
                """,
                self.tenant,
            )
            await connection.execute(
                "UPDATE lease SET expires_at = clock_timestamp() WHERE tenant_id = $1", self.tenant
            )

    async def _text(self, content: str, memory: Any, made_for: Generation | Literal[False]) -> FindableText:
        head = head_of(memory.actor, memory.occurred_at)
        if not made_for:
            return findable(content, head=head, embedded=None)
        items = [EmbedItem(content, head)]
        [result] = await self._embedder.embed_passages(
            self.tenant, items, model=made_for.model, lane="write", timeout_s=5
        )
        return findable(content, head=head, embedded=result)


def _new(text: str, fields: dict[str, Any]) -> NewMemory:
    given: dict[str, Any] = {
        "external_id": None,
        "actor": None,
        "scene": [],
        "source": None,
        "memory_type": "experience",
        "user_id": None,
        "agent_id": None,
        "session_id": None,
        "importance": 0.5,
        "priority": 3,
        "pinned": False,
        "metadata": {},
        "occurred_at": datetime.now(UTC),
        "occurred_given": False,
        "expires_at": None,
        "dedup_key": None,
    }
    return NewMemory(id=uuid_utils.compat.uuid7(), content=text, **{**given, **fields})

"""Changing one memory, and deleting one."""

from uuid import UUID

from memplane_core.contracts.memories import MemoryPatch
from memplane_core.domain.errors import Conflict, NotFound, PreconditionFailed
from memplane_core.domain.memory import Memory
from memplane_core.domain.ports import Kicker
from memplane_core.domain.tenancy import Principal
from memplane_core.storage import memories, memory_writes
from memplane_core.storage.memories import Revision
from memplane_core.storage.memory_writes import Change
from memplane_core.storage.session import Database
from memplane_retrieval.attempts import attempts
from memplane_retrieval.changes import amend, given_fields
from memplane_retrieval.embedding import Chunker, TextToChunk
from memplane_retrieval.generations import Generations


class Patcher:
    """Optimistic: the text is embedded outside of the transaction, which then checks that nothing has moved."""

    def __init__(self, database: Database, generations: Generations, chunker: Chunker, kicker: Kicker) -> None:
        self._database = database
        self._generations = generations
        self._chunker = chunker
        self._kicker = kicker

    async def patch(self, principal: Principal, memory_id: UUID, *, patch: MemoryPatch, if_match: int | None) -> Memory:
        """The memory with the named fields changed.

        Raises:
            NotFound: There is none, or it has expired.
            PreconditionFailed: `if_match` is not its version.
            DuplicateMemory: It would become equal to another active memory.
            Conflict: Others kept changing it.
        """
        tenant = principal.tenant
        given = given_fields(patch)
        async for _ in attempts():
            async with self._database.tenant(tenant) as connection:
                before = await memories.read_revision(tenant, connection, memory_id)
            amended = amend(_found(before, if_match=if_match), given)
            generation = await self._generations.active(tenant)
            chunks = None
            if amended.new_text:
                text = TextToChunk(amended.after.content, amended.after.actor, amended.after.occurred_at)
                [chunks] = await self._chunker.chunks(tenant, [text], generation=generation)
            async with self._database.tenant(tenant) as connection:
                locked = _found(
                    await memories.read_revision(tenant, connection, memory_id, lock=True), if_match=if_match
                )
                if locked.memory.version != amended.after.version:
                    continue
                if not amended.changed:
                    return locked.memory
                change = Change(
                    after=amended.after,
                    occurred_given=amended.occurred_given,
                    dedup_key=amended.dedup_key,
                    revive=False,
                    reindex=amended.reindex,
                    chunks=chunks,
                    changed=amended.changed,
                )
                await memory_writes.update(principal, connection, locked, change, generation=generation.number)
                found = await memories.read(tenant, connection, [memory_id])
            self._kicker.kick(tenant)
            # A patch may set an expiry that lies in the past: the memory is changed, and gone from view.
            return found.get(memory_id, amended.after)
        raise Conflict("others keep changing this memory; try again", retry_after=1)

    async def delete(self, principal: Principal, memory_id: UUID, *, if_match: int | None) -> None:
        """Delete the memory for good.

        Raises:
            NotFound: There is none, or it has expired.
            PreconditionFailed: `if_match` is not its version.
        """
        tenant = principal.tenant
        async with self._database.tenant(tenant) as connection:
            _found(await memories.read_revision(tenant, connection, memory_id, lock=True), if_match=if_match)
            await memories.remove(tenant, connection, memory_id)
        self._kicker.kick(tenant)


def _found(revision: Revision | None, *, if_match: int | None) -> Revision:
    if revision is None:
        raise NotFound("there is no memory of this id")
    if if_match is not None and revision.memory.version != if_match:
        raise PreconditionFailed(f"the memory has version {revision.memory.version}, not {if_match}")
    return revision

"""Changing one memory, and deleting one."""

from typing import Any
from uuid import UUID

from memplane_core.contracts.memories import MemoryPatch
from memplane_core.domain.binding import sees
from memplane_core.domain.errors import Conflict, DuplicateMemory, NotFound, PreconditionFailed
from memplane_core.domain.memory import Memory
from memplane_core.domain.ports import Kicker
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import memories, memory_writes
from memplane_core.storage.memories import Name, Revision
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.usage_days import add_tokens
from memplane_retrieval.attempts import ChangedMeanwhileError, attempts, is_contention
from memplane_retrieval.changes import Amended, amend, given_fields
from memplane_retrieval.embedding import Chunker, tokens_later
from memplane_retrieval.generations import Generations
from memplane_retrieval.ownership import check_patch_owner


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
            NotFound: There is none, or it has expired, or it is nobody's whom the caller's key is bound to.
            Forbidden: It would become somebody else's.
            PreconditionFailed: `if_match` is not its version.
            QuotaExceeded: The tenant has no tokens left for its new text today.
            DuplicateMemory: It would become equal to another active memory.
            Conflict: Others kept changing it.
        """
        check_patch_owner(principal, patch, policy=await self._generations.policy(principal.tenant))
        given = given_fields(patch)
        async for _ in attempts():
            try:
                memory = await self._try(principal, memory_id, given=given, if_match=if_match)
            except Exception as error:
                if is_contention(error):
                    self._generations.forget(principal.tenant)  # another may be active by now
                    continue
                raise
            self._kicker.kick(principal.tenant)
            return memory
        raise Conflict("others keep changing this memory; try again", retry_after=1)

    async def _try(
        self, principal: Principal, memory_id: UUID, *, given: dict[str, Any], if_match: int | None
    ) -> Memory:
        tenant = principal.tenant
        async with self._database.tenant(tenant) as connection:
            before = await memories.read_revision(tenant, connection, memory_id)
        planned = amend(_found(principal, before, if_match=if_match), given)
        generation = await self._generations.active(tenant)
        text = None
        if planned.new_text:
            [text] = await self._chunker.texts(tenant, [planned.text], generation=generation)
        async with self._database.tenant(tenant) as connection:
            current = await memories.read_revision(tenant, connection, memory_id, lock=True)
            locked = _found(principal, current, if_match=if_match)
            amended = amend(locked, given)
            if amended.new_text and (text is None or amended.text != planned.text):
                raise ChangedMeanwhileError
            if not amended.changed:
                return locked.memory
            await _check_place(tenant, connection, locked, amended)
            change = amended.as_change(locked, revive=False, text=text if amended.new_text else None)
            await memory_writes.update(principal, connection, [change], generation=generation.number)
            if change.text is not None and not change.text.embedded:
                await add_tokens(tenant, connection, tokens_later(amended.text))
            # A patch may set an expiry that lies in the past: the memory is changed, and gone from view.
            found = await memories.read(tenant, connection, [memory_id], also_expired=True)
        return found[memory_id]

    async def delete(self, principal: Principal, memory_id: UUID, *, if_match: int | None) -> None:
        """Delete the memory for good.

        Raises:
            NotFound: There is none, or it has expired.
            PreconditionFailed: `if_match` is not its version.
            Conflict: Others kept changing it.
        """
        tenant = principal.tenant
        async for _ in attempts():
            try:
                async with self._database.tenant(tenant) as connection:
                    current = await memories.read_revision(tenant, connection, memory_id, lock=True)
                    _found(principal, current, if_match=if_match)
                    await memories.remove(tenant, connection, memory_id)
            except Exception as error:
                if is_contention(error):
                    continue
                raise
            self._kicker.kick(tenant)
            return
        raise Conflict("others keep changing this memory; try again", retry_after=1)


async def _check_place(tenant: TenantId, connection: Connection, locked: Revision, amended: Amended) -> None:
    """Raise DuplicateMemory where another memory is already what this one is to be. An expired twin gives way."""
    key, after = amended.dedup_key, amended.after
    if key is not None and key != locked.dedup_key:
        # Unlocked: two memories that are each to become the other would wait for one another.
        twin = (await memories.find_twins(tenant, connection, [key])).get(key)
        if twin is not None and not twin.expired:
            raise DuplicateMemory(f"memory {twin.memory.id} is the same already", id=twin.memory.id)
        if twin is not None:
            await memory_writes.release_places(tenant, connection, [twin.memory.id])
    if after.external_id is not None and amended.changed.keys() & {"user_id", "agent_id"}:
        name = Name(after.external_id, after.user_id, after.agent_id)
        holder = (await memories.find_named(tenant, connection, [name])).get(name)
        if holder is not None:
            raise DuplicateMemory(
                f"memory {holder.memory.id} has this external_id for that user and agent already", id=holder.memory.id
            )


def _found(principal: Principal, revision: Revision | None, *, if_match: int | None) -> Revision:
    if revision is None or not sees(principal, revision.memory):
        raise NotFound("there is no memory of this id")
    if if_match is not None and revision.memory.version != if_match:
        raise PreconditionFailed(f"the memory has version {revision.memory.version}, not {if_match}")
    return revision

"""Changing one memory, and deleting one."""

from typing import Any
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import MemoryPatch
from memplane_core.domain.binding import sees
from memplane_core.domain.chunking import FindableText
from memplane_core.domain.errors import Conflict, DuplicateMemory, NotFound, PreconditionFailed
from memplane_core.domain.memory import Memory
from memplane_core.domain.ports import Kicker
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import audit, idempotency, memories, memory_writes
from memplane_core.storage.idempotency import EFFECTS, Effect, Fingerprint
from memplane_core.storage.memories import Name, Revision
from memplane_core.storage.removals import remove_memories
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.usage_days import add_tokens
from memplane_core.web.repeats import Once, once
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

    async def patch(
        self,
        principal: Principal,
        memory_id: UUID,
        *,
        patch: MemoryPatch,
        if_match: int | None,
        fingerprint: Fingerprint | None,
    ) -> Once[Memory]:
        """The memory with the named fields changed; as it is now, where the request did that before.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            NotFound: There is none, or it has expired, or it is nobody's whom the caller's key is bound to.
            Forbidden: It would become somebody else's.
            PreconditionFailed: `if_match` is not its version.
            QuotaExceeded: The tenant has no tokens left for its new text today.
            DuplicateMemory: It would become equal to another active memory.
            Conflict: It is forgotten or merged, or others kept changing it.
        """
        check_patch_owner(principal, patch, policy=await self._generations.policy(principal.tenant))
        given = given_fields(patch)
        async for _ in attempts():
            try:
                patched = await self._try(principal, memory_id, given=given, if_match=if_match, fingerprint=fingerprint)
            except Exception as error:
                if is_contention(error):
                    self._generations.forget(principal.tenant)  # another may be active by now
                    continue
                raise
            if not patched.replayed:
                self._kicker.kick(principal.tenant)
            return patched
        raise Conflict("others keep changing this memory; try again", retry_after=1)

    async def _try(
        self,
        principal: Principal,
        memory_id: UUID,
        *,
        given: dict[str, Any],
        if_match: int | None,
        fingerprint: Fingerprint | None,
    ) -> Once[Memory]:
        tenant = principal.tenant
        async with self._database.tenant(tenant) as connection:
            if fingerprint and await idempotency.recall(tenant, connection, fingerprint, kind=EFFECTS):
                return await _replay(principal, connection, memory_id)
            before = await memories.read_revision(tenant, connection, memory_id)
        planned = amend(_shown(_found(principal, before, if_match=if_match)), given)
        generation = await self._generations.active(tenant)
        text = None
        if planned.new_text:
            [text] = await self._chunker.texts(tenant, [planned.text], generation=generation)
        prepared = _Prepared(planned, text, generation.number)
        async with self._database.tenant(tenant) as connection:
            if fingerprint and await idempotency.claim(tenant, connection, fingerprint, kind=EFFECTS):
                return await _replay(principal, connection, memory_id)
            current = await memories.read_revision(tenant, connection, memory_id, lock=True)
            locked = _shown(_found(principal, current, if_match=if_match))
            memory = await _change(principal, connection, locked, given=given, prepared=prepared)
            if fingerprint:
                await idempotency.settle(tenant, connection, fingerprint, outcome=[Effect(str(memory_id))])
        return Once(memory, replayed=False)

    async def delete(
        self, principal: Principal, memory_id: UUID, *, if_match: int | None, fingerprint: Fingerprint | None
    ) -> Once[None]:
        """Delete the memory for good.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            NotFound: There is none, or it has expired.
            PreconditionFailed: `if_match` is not its version.
            Conflict: Others kept changing it.
        """
        tenant = principal.tenant

        async def remove(connection: Connection) -> list[Effect]:
            current = await memories.read_revision(tenant, connection, memory_id, lock=True)
            _found(principal, current, if_match=if_match)
            await remove_memories(tenant, connection, [memory_id])
            await audit.record(
                connection,
                tenant=tenant,
                actor=principal.key_id,
                action="deleteMemory",
                target=str(memory_id),
                result="done",
                source=principal.source,
                request_id=principal.request_id,
            )
            return [Effect(str(memory_id))]

        async for _ in attempts():
            try:
                done = await once(tenant, self._database, fingerprint, kind=EFFECTS, act=remove)
            except Exception as error:
                if is_contention(error):
                    continue
                raise
            if not done.replayed:
                self._kicker.kick(tenant)
            return Once(None, done.replayed)
        raise Conflict("others keep changing this memory; try again", retry_after=1)


class _Prepared(msgspec.Struct, frozen=True):
    """A change as it was worked out outside of the transaction."""

    planned: Amended
    text: FindableText | None
    generation: int


async def _change(
    principal: Principal, connection: Connection, locked: Revision, *, given: dict[str, Any], prepared: _Prepared
) -> Memory:
    """Change the memory that is locked, and return what it is then."""
    tenant, memory_id = principal.tenant, locked.memory.id
    amended = amend(locked, given)
    if amended.new_text and (prepared.text is None or amended.text != prepared.planned.text):
        raise ChangedMeanwhileError
    if not amended.changed:
        return locked.memory
    await _check_place(tenant, connection, locked, amended)
    change = amended.as_change(locked, revive=False, text=prepared.text if amended.new_text else None)
    await memory_writes.update(principal, connection, [change], generation=prepared.generation)
    if change.text is not None and not change.text.embedded:
        await add_tokens(tenant, connection, tokens_later(amended.text))
    # A patch may set an expiry that lies in the past: the memory is changed, and gone from view.
    found = await memories.read(tenant, connection, [memory_id], also_expired=True)
    return found[memory_id]


async def _replay(principal: Principal, connection: Connection, memory_id: UUID) -> Once[Memory]:
    """The memory as it is now. Raises NotFound where it is not there any more."""
    memory = (await memories.read(principal.tenant, connection, [memory_id], also_expired=True)).get(memory_id)
    if memory is None or not sees(principal, memory):
        raise NotFound("the memory that this request changed before is not there any more", id=memory_id)
    return Once(memory, replayed=True)


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


def _shown(revision: Revision) -> Revision:
    """What is hidden stays as it is, so that it comes back as it was."""
    if revision.memory.state != "active":
        raise Conflict(f"this memory is {revision.memory.state}: restore it first")
    return revision


def _found(principal: Principal, revision: Revision | None, *, if_match: int | None) -> Revision:
    if revision is None or not sees(principal, revision.memory):
        raise NotFound("there is no memory of this id")
    if if_match is not None and revision.memory.version != if_match:
        raise PreconditionFailed(f"the memory has version {revision.memory.version}, not {if_match}")
    return revision

"""Storing memories: embed first, then one transaction that leaves all of it or nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import MemoryWrite
from memplane_core.domain.chunking import Chunk
from memplane_core.domain.errors import Conflict
from memplane_core.domain.index import Generation
from memplane_core.domain.memory import Memory
from memplane_core.domain.ports import Kicker
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import idempotency, memories, memory_writes
from memplane_core.storage.idempotency import Fingerprint, WriteOutcome
from memplane_core.storage.memories import Revision
from memplane_core.storage.session import Connection, Database, is_contention
from memplane_retrieval.attempts import attempts
from memplane_retrieval.changes import Amended, amend, given_fields, later_expiry
from memplane_retrieval.embedding import Chunker, TextToChunk
from memplane_retrieval.generations import Generations
from memplane_retrieval.slots import Slot, slots_of


class ChangedMeanwhileError(Exception):
    """Somebody else changed what this transaction was prepared for: prepare again."""


class Plan(msgspec.Struct, frozen=True):
    """A request made ready outside of any transaction."""

    slots: list[Slot]
    generation: Generation
    chunks: dict[UUID, list[Chunk]]
    """By the id that the memory has or will have."""


class Written(msgspec.Struct, frozen=True):
    """What became of a write.

    Attributes:
        outcome: One for each item, in order.
        memories: As they are now, by id.
        replayed: The request came before, and this is what it did then.
    """

    outcome: list[WriteOutcome]
    memories: dict[UUID, Memory]
    replayed: bool


class Writer:
    """Writes one memory or many; both take the same path."""

    def __init__(self, database: Database, generations: Generations, chunker: Chunker, kicker: Kicker) -> None:
        self._database = database
        self._generations = generations
        self._chunker = chunker
        self._kicker = kicker

    async def write(
        self, principal: Principal, writes: Sequence[MemoryWrite], *, batch: bool, fingerprint: Fingerprint | None
    ) -> Written:
        """Store all of `writes`, or none.

        Args:
            principal: Whose memories they will be.
            writes: Checked for what their types cannot say.
            batch: Whether errors point into `/memories/<n>`.
            fingerprint: Of the request, where it came with an Idempotency-Key.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            Conflict: Others kept changing the same memories.
        """
        tenant = principal.tenant
        async for _ in attempts():
            slots = slots_of(writes, now=datetime.now(UTC), batch=batch)
            if fingerprint is not None or any(slot.named for slot in slots):
                async with self._database.tenant(tenant) as connection:
                    before = fingerprint and await idempotency.recall_outcome(tenant, connection, fingerprint)
                    if before is not None:
                        return await self._replay(tenant, connection, before)
                    await self._find_named(tenant, connection, slots)
            plan = await self._plan(tenant, slots)
            try:
                async with self._database.tenant(tenant) as connection:
                    if fingerprint is not None:
                        before = await idempotency.claim(tenant, connection, fingerprint)
                        if before is not None:
                            return await self._replay(tenant, connection, before)
                    written = await self._store(principal, connection, plan, items=len(writes))
                    if fingerprint is not None:
                        await idempotency.settle(tenant, connection, fingerprint, written.outcome)
            except ChangedMeanwhileError:
                continue
            except Exception as error:
                if is_contention(error):
                    continue
                raise
            self._kicker.kick(tenant)
            return written
        raise Conflict("others keep changing the same memories; try again", retry_after=1)

    async def _replay(self, tenant: TenantId, connection: Connection, before: list[WriteOutcome]) -> Written:
        found = await memories.read(tenant, connection, [item.id for item in before])
        return Written(before, found, replayed=True)

    async def _find_named(self, tenant: TenantId, connection: Connection, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if slot.write.external_id is not None:
                slot.known = await memories.find_external(
                    tenant,
                    connection,
                    user_id=slot.fresh.user_id,
                    agent_id=slot.fresh.agent_id,
                    external_id=slot.write.external_id,
                )

    async def _plan(self, tenant: TenantId, slots: list[Slot]) -> Plan:
        """Chunks for every text that is new."""
        generation = await self._generations.active(tenant)
        texts: dict[UUID, TextToChunk] = {}
        for slot in slots:
            if slot.known is None:
                texts[slot.fresh.id] = TextToChunk(slot.fresh.content, slot.fresh.actor, slot.fresh.occurred_at)
            elif (amended := _amended(slot.known, slot.write)).new_text:
                after = amended.after
                texts[after.id] = TextToChunk(after.content, after.actor, after.occurred_at)
        chunks = await self._chunker.chunks(tenant, list(texts.values()), generation=generation)
        return Plan(slots, generation, dict(zip(texts, chunks, strict=True)))

    async def _store(self, principal: Principal, connection: Connection, plan: Plan, *, items: int) -> Written:
        """The transaction's work: named ones that are there, then all new ones at once, then those with a twin."""
        tenant = principal.tenant
        stored: dict[bytes, WriteOutcome] = {}
        for slot in plan.slots:
            if slot.known is not None:
                stored[slot.order] = await self._upsert(principal, connection, slot, plan=plan)
        fresh = [slot for slot in plan.slots if slot.known is None]
        made = await memory_writes.insert(
            principal,
            connection,
            [slot.fresh for slot in fresh],
            generation=plan.generation.number,
            chunks=plan.chunks,
        )
        known: dict[UUID, Memory] = {}
        for slot in fresh:
            if slot.fresh.id in made:
                stored[slot.order] = WriteOutcome(slot.fresh.id, _made_status(plan, slot), deduplicated=False)
                known[slot.fresh.id] = _as_memory(slot, made[slot.fresh.id].created_at)
            else:
                stored[slot.order] = await self._meet_twin(principal, connection, slot, plan=plan)
        missing = [outcome.id for outcome in stored.values() if outcome.id not in known]
        if missing:
            known |= await memories.read(tenant, connection, missing)
        return Written(_in_order(plan.slots, stored, items=items), known, replayed=False)

    async def _upsert(self, principal: Principal, connection: Connection, slot: Slot, *, plan: Plan) -> WriteOutcome:
        """Give the memory of this name its new fields; a hidden or expired one comes back."""
        expected = slot.known
        assert expected is not None
        locked = await memories.find_external(
            principal.tenant,
            connection,
            user_id=slot.fresh.user_id,
            agent_id=slot.fresh.agent_id,
            external_id=slot.write.external_id or "",
            lock=True,
        )
        if locked is None or locked.memory.version != expected.memory.version:
            raise ChangedMeanwhileError
        amended = _amended(locked, slot.write)
        revive = locked.memory.state != "active" or _expired(locked.memory)
        chunks = plan.chunks.get(locked.memory.id)
        await _apply(
            principal, connection, locked, amended, revive=revive, chunks=chunks, generation=plan.generation.number
        )
        return WriteOutcome(locked.memory.id, 202 if _unembedded(chunks or []) else 200, deduplicated=False)

    async def _meet_twin(self, principal: Principal, connection: Connection, slot: Slot, *, plan: Plan) -> WriteOutcome:
        """An equal memory holds this one's place."""
        tenant, key = principal.tenant, slot.fresh.dedup_key
        if key is None:
            raise ChangedMeanwhileError  # the name was taken after it was looked up
        twin = await memories.find_twin(tenant, connection, key)
        if twin is None:
            raise ChangedMeanwhileError
        if await memory_writes.release_expired(tenant, connection, twin.memory.id):
            return await self._insert_one(principal, connection, slot, plan=plan, dedup_key=key)
        if slot.write.on_duplicate == "create":
            return await self._insert_one(principal, connection, slot, plan=plan, dedup_key=None)
        given = given_fields(slot.write)
        if slot.write.on_duplicate == "return":
            given = {"expires_at": later_expiry(twin.memory.expires_at, slot.fresh.expires_at)}
        await _apply(
            principal,
            connection,
            twin,
            amend(twin, given),
            revive=False,
            chunks=None,
            generation=plan.generation.number,
        )
        return WriteOutcome(twin.memory.id, 200, deduplicated=True)

    async def _insert_one(
        self, principal: Principal, connection: Connection, slot: Slot, *, plan: Plan, dedup_key: bytes | None
    ) -> WriteOutcome:
        memory = msgspec.structs.replace(slot.fresh, dedup_key=dedup_key)
        made = await memory_writes.insert(
            principal, connection, [memory], generation=plan.generation.number, chunks=plan.chunks
        )
        if not made:
            raise ChangedMeanwhileError
        return WriteOutcome(memory.id, _made_status(plan, slot), deduplicated=False)


async def _apply(
    principal: Principal,
    connection: Connection,
    before: Revision,
    amended: Amended,
    *,
    revive: bool,
    chunks: list[Chunk] | None,
    generation: int,
) -> None:
    """Write a change down, if it is one."""
    if not amended.changed and not revive:
        return
    await memory_writes.update(
        principal,
        connection,
        before,
        memory_writes.Change(
            after=amended.after,
            occurred_given=amended.occurred_given,
            dedup_key=amended.dedup_key,
            revive=revive,
            reindex=amended.reindex or revive,
            chunks=chunks,
            changed=amended.changed,
        ),
        generation=generation,
    )


def _amended(known: Revision, write: MemoryWrite) -> Amended:
    given = given_fields(write)
    if _expired(known.memory) and "expires_at" not in given:
        given["expires_at"] = None  # or the new write would be dead as it is born
    return amend(known, given)


def _expired(memory: Memory) -> bool:
    return memory.expires_at is not None and memory.expires_at <= datetime.now(UTC)


def _unembedded(chunks: Sequence[Chunk]) -> bool:
    return any(chunk.vector is None for chunk in chunks)


def _made_status(plan: Plan, slot: Slot) -> Literal[201, 202]:
    return 202 if _unembedded(plan.chunks[slot.fresh.id]) else 201


def _as_memory(slot: Slot, created_at: datetime) -> Memory:
    """The memory that has just been inserted, without asking for it again."""
    fields = msgspec.structs.asdict(slot.fresh)
    for internal in ("occurred_given", "dedup_key"):
        del fields[internal]
    return Memory(
        **fields,
        created_at=created_at,
        updated_at=created_at,
        last_accessed_at=created_at,
        access_count=0,
        version=1,
        state="active",
        merged_into=None,
        purge_at=None,
        index_state="pending",
        index_error=None,
    )


def _in_order(slots: Sequence[Slot], stored: dict[bytes, WriteOutcome], *, items: int) -> list[WriteOutcome]:
    """One outcome for each item: the first of a slot did what was done, the others found it there."""
    outcome: list[WriteOutcome | None] = [None] * items
    for slot in slots:
        first = stored[slot.order]
        for n, place in enumerate(slot.items):
            outcome[place] = first if n == 0 else WriteOutcome(first.id, 200, deduplicated=not slot.named)
    return [item for item in outcome if item is not None]

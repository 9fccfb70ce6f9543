"""Storing memories: embed first, then one transaction that leaves all of it or nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

import msgspec

from memplane_core.contracts.memories import MemoryWrite
from memplane_core.domain.binding import sees
from memplane_core.domain.chunking import FindableText
from memplane_core.domain.errors import Conflict
from memplane_core.domain.index import Generation
from memplane_core.domain.memory import Memory, begun
from memplane_core.domain.ports import Kicker
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import idempotency, memories, memory_writes
from memplane_core.storage.idempotency import OUTCOMES, Fingerprint, WriteOutcome
from memplane_core.storage.memories import Revision
from memplane_core.storage.memory_writes import Change
from memplane_core.storage.new_memories import NewMemory
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.usage_days import add_tokens
from memplane_retrieval.attempts import ChangedMeanwhileError, attempts, is_contention
from memplane_retrieval.changes import Amended, amend, given_fields, repeated
from memplane_retrieval.embedding import Chunker, TextToChunk, tokens_later
from memplane_retrieval.generations import Generations
from memplane_retrieval.ownership import owned
from memplane_retrieval.slots import Slot, slots_of
from memplane_retrieval.supersede import (
    Superseding,
    closing,
    lock_superseded,
    superseding,
    with_beginnings,
    with_places,
)


class Plan(msgspec.Struct, frozen=True):
    """A request made ready outside of any transaction."""

    slots: list[Slot]
    generation: Generation
    texts: dict[UUID, TextToChunk]
    """New ones, by the id that the memory has or will have."""
    found_by: dict[UUID, FindableText]
    """What each of them is found by."""
    replacing: dict[int, Superseding]
    """Items that supersede, by their places."""

    def tokens_later(self, outcome: Sequence[WriteOutcome]) -> int:
        """The charge for the texts that were stored without vectors."""
        stored = {item.id for item in outcome if item.status == 202}
        return sum(tokens_later(text) for name, text in self.texts.items() if name in stored)


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
            Forbidden: One names somebody whom the caller's key is not bound to.
            InvalidRequest: One names no user, and the tenant's policy asks for it.
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            QuotaExceeded: The tenant may not have so many memories, or has no tokens left today.
            Conflict: Others kept changing the same memories.
        """
        tenant = principal.tenant
        policy = await self._generations.policy(tenant)
        writes = owned(principal, writes, policy=policy, batch=batch)
        writes = await with_beginnings(tenant, self._database, writes, batch=batch)
        replacing = superseding(writes, batch=batch)
        async for _ in attempts():
            slots = slots_of(writes, now=datetime.now(UTC), policy=policy, batch=batch)
            if fingerprint is not None or any(slot.name for slot in slots):
                async with self._database.tenant(tenant) as connection:
                    before = fingerprint and await idempotency.recall(tenant, connection, fingerprint, kind=OUTCOMES)
                    if before is not None:
                        return await self._replay(principal, connection, before)
                    await self._find_named(tenant, connection, slots)
            plan = await self._plan(tenant, slots, replacing=replacing)
            try:
                async with self._database.tenant(tenant) as connection:
                    if fingerprint is not None:
                        before = await idempotency.claim(tenant, connection, fingerprint, kind=OUTCOMES)
                        if before is not None:
                            return await self._replay(principal, connection, before)
                    written = await self._store(principal, connection, plan, items=len(writes))
                    if later := plan.tokens_later(written.outcome):
                        await add_tokens(tenant, connection, later)
                    if fingerprint is not None:
                        await idempotency.settle(tenant, connection, fingerprint, outcome=written.outcome)
            except Exception as error:
                if is_contention(error):
                    self._generations.forget(tenant)  # another may be active by now
                    continue
                raise
            self._kicker.kick(tenant)
            return written
        raise Conflict("others keep changing the same memories; try again", retry_after=1)

    async def _replay(self, principal: Principal, connection: Connection, before: list[WriteOutcome]) -> Written:
        ids = [item.id for item in before]
        found = await memories.read(principal.tenant, connection, ids, also_expired=True)
        own = {memory_id: memory for memory_id, memory in found.items() if sees(principal, memory)}
        return Written(before, own, replayed=True)

    async def _find_named(self, tenant: TenantId, connection: Connection, slots: Sequence[Slot]) -> None:
        names = {slot.order: name for slot in slots if (name := slot.name) is not None}
        if names:
            found = await memories.find_named(tenant, connection, list(names.values()))
            for slot in slots:
                slot.known = found.get(names[slot.order]) if slot.order in names else None

    async def _plan(self, tenant: TenantId, slots: list[Slot], *, replacing: dict[int, Superseding]) -> Plan:
        """What every text that is new is found by."""
        generation = await self._generations.active(tenant)
        texts: dict[UUID, TextToChunk] = {}
        for slot in slots:
            if slot.known is None:
                texts[slot.fresh.id] = TextToChunk(slot.fresh.content, slot.fresh.actor, slot.fresh.occurred_at)
            elif (amended := _amended(slot.known, slot.write)).new_text:
                texts[amended.after.id] = amended.text
        found_by = await self._chunker.texts(tenant, list(texts.values()), generation=generation)
        return Plan(slots, generation, texts, dict(zip(texts, found_by, strict=True)), replacing)

    async def _store(self, principal: Principal, connection: Connection, plan: Plan, *, items: int) -> Written:
        """The transaction's work: named ones that are there, then all new ones at once, then those with a twin."""
        tenant = principal.tenant
        old = await lock_superseded(tenant, connection, plan.replacing.values())
        stored = await self._upsert(principal, connection, plan)
        fresh = [slot for slot in plan.slots if slot.known is None]
        made = await memory_writes.insert(
            principal,
            connection,
            [slot.fresh for slot in fresh],
            generation=plan.generation.number,
            texts=plan.found_by,
        )
        known: dict[UUID, Memory] = {}
        for slot in fresh:
            if slot.fresh.id in made:
                stored[slot.order] = WriteOutcome(slot.fresh.id, _made_status(plan, slot), deduplicated=False)
                known[slot.fresh.id] = _as_memory(slot, made[slot.fresh.id].created_at)
        blocked = [slot for slot in fresh if slot.fresh.id not in made]
        stored |= await self._meet_twins(principal, connection, blocked, plan=plan)
        missing = [outcome.id for outcome in stored.values() if outcome.id not in known]
        if missing:
            known |= await memories.read(tenant, connection, missing, also_expired=True)
        outcome = _in_order(plan.slots, stored, items=items)
        if plan.replacing:
            written = frozenset(item.id for item in outcome)
            changes = [
                change
                for n, its in plan.replacing.items()
                if (change := closing(principal, its, old=old.get(its.old), by=known[outcome[n].id], written=written))
            ]
            changes = await with_places(tenant, connection, changes)
            await memory_writes.update(principal, connection, changes, generation=plan.generation.number)
        return Written(outcome, known, replayed=False)

    async def _upsert(self, principal: Principal, connection: Connection, plan: Plan) -> dict[bytes, WriteOutcome]:
        """Give memories of a name their new fields; a hidden or expired one comes back."""
        known = {slot.order: (slot, name) for slot in plan.slots if slot.known and (name := slot.name)}
        if not known:
            return {}
        locked = await memories.find_named(
            principal.tenant, connection, [name for _, name in known.values()], lock=True
        )
        stored: dict[bytes, WriteOutcome] = {}
        changes: list[Change] = []
        for order, (slot, name) in known.items():
            current = locked.get(name)
            if current is None:
                raise ChangedMeanwhileError
            revive = current.memory.state != "active" or current.expired
            amended = _amended(current, slot.write)
            text = None
            if amended.new_text:
                if plan.texts.get(current.memory.id) != amended.text:
                    raise ChangedMeanwhileError  # of its indexed text, something that this write does not name
                text = plan.found_by[current.memory.id]
            if amended.changed or revive:
                changes.append(amended.as_change(current, revive=revive, text=text))
            status = 202 if text is not None and not text.embedded else 200
            stored[order] = WriteOutcome(current.memory.id, status, deduplicated=False)
        await memory_writes.update(principal, connection, changes, generation=plan.generation.number)
        return stored

    async def _meet_twins(
        self, principal: Principal, connection: Connection, blocked: Sequence[Slot], *, plan: Plan
    ) -> dict[bytes, WriteOutcome]:
        """Equal memories hold these ones' places."""
        if not blocked:
            return {}
        keys = {slot.fresh.dedup_key: slot for slot in blocked}
        wanted = [key for key in keys if key is not None]
        if len(wanted) < len(blocked):
            raise ChangedMeanwhileError  # a name was taken after it was looked up
        twins = await memories.find_twins(principal.tenant, connection, wanted, lock=True)
        expired: list[UUID] = []
        changes: list[Change] = []
        again: list[NewMemory] = []
        stored: dict[bytes, WriteOutcome] = {}
        for key in wanted:
            slot, twin = keys[key], twins.get(key)
            if twin is None:
                raise ChangedMeanwhileError
            if twin.expired or slot.write.on_duplicate == "create":
                if twin.expired:
                    expired.append(twin.memory.id)
                again.append(msgspec.structs.replace(slot.fresh, dedup_key=key if twin.expired else None))
                stored[slot.order] = WriteOutcome(slot.fresh.id, _made_status(plan, slot), deduplicated=False)
                continue
            amended = amend(twin, repeated(twin, slot.writes))
            if amended.changed:
                changes.append(amended.as_change(twin, revive=False, text=None))
            stored[slot.order] = WriteOutcome(twin.memory.id, 200, deduplicated=True)
        await self._insert_again(principal, connection, again, expired=expired, plan=plan)
        await memory_writes.update(principal, connection, changes, generation=plan.generation.number)
        return stored

    async def _insert_again(
        self,
        principal: Principal,
        connection: Connection,
        again: Sequence[NewMemory],
        *,
        expired: Sequence[UUID],
        plan: Plan,
    ) -> None:
        """Insert beside a twin, or in place of an expired one."""
        if expired:
            await memory_writes.release_places(principal.tenant, connection, expired)
        if not again:
            return
        made = await memory_writes.insert(
            principal, connection, again, generation=plan.generation.number, texts=plan.found_by
        )
        if len(made) < len(again):
            raise ChangedMeanwhileError


def _amended(known: Revision, write: MemoryWrite) -> Amended:
    given = given_fields(write)
    if known.expired and "expires_at" not in given:
        given["expires_at"] = None  # or the new write would be dead as it is born
    return amend(known, given)


def _made_status(plan: Plan, slot: Slot) -> Literal[201, 202]:
    return 201 if plan.found_by[slot.fresh.id].embedded else 202


def _as_memory(slot: Slot, created_at: datetime) -> Memory:
    """The memory that has just been inserted, without asking for it again."""
    fields = msgspec.structs.asdict(slot.fresh)
    for internal in ("occurred_given", "dedup_key", "unscored", "past"):
        del fields[internal]
    return begun(fields, at=created_at)


def _in_order(slots: Sequence[Slot], stored: dict[bytes, WriteOutcome], *, items: int) -> list[WriteOutcome]:
    """One outcome for each item: the first of a slot did what was done, the others found it there."""
    outcome: list[WriteOutcome | None] = [None] * items
    for slot in slots:
        first = stored[slot.order]
        for n, place in enumerate(slot.items):
            outcome[place] = first if n == 0 else WriteOutcome(first.id, 200, deduplicated=slot.name is None)
    return [item for item in outcome if item is not None]

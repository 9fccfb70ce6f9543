"""Stores a part of an import: all that is good in it, in one transaction."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import msgspec

from memplane_core.contracts.export import HistoryLine, MemoryLine
from memplane_core.contracts.imports import (
    LISTED,
    ImportConflict,
    ImportCounts,
    ImportFault,
    ImportPartDone,
    ImportPlace,
    OnConflict,
)
from memplane_core.domain.chunking import FindableText
from memplane_core.domain.errors import Conflict, Fault, invalid
from memplane_core.domain.observations import MOST_HELD
from memplane_core.domain.ports import Kicker, TokenMeter
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import imports, markers, memories, memory_writes, merge_ledgers, observations
from memplane_core.storage.markers import Author
from memplane_core.storage.memories import Revision
from memplane_core.storage.memory_writes import PlaceTakenError
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.usage_days import add_tokens
from memplane_retrieval.attempts import ChangedMeanwhileError, attempts, is_contention
from memplane_retrieval.embedding import tokens_later
from memplane_retrieval.generations import Generations
from memplane_retrieval.import_lines import ImportPart, Numbered, read_part, words_of
from memplane_retrieval.import_rules import (
    StopImportError,
    Stored,
    amended_by,
    clashes,
    conflict_of,
    has_new_text,
    is_same,
    lock_order,
    make_room,
    new_memory,
    note_clash,
    stored_observation,
    text_of,
)


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A part made ready outside of any transaction.

    Attributes:
        texts: What those are found by that were not there, or had another text, when it was looked.
        generation: The active one.
    """

    part: ImportPart
    texts: dict[UUID, FindableText]
    generation: int


class Importer:
    """Stores parts of imports; each may be stored again, which changes nothing.

    Args:
        database: Where.
        generations: Tells which generation is active.
        kicker: Told when there is something to index.
        meter: Says what is left of the tenant's tokens.
    """

    def __init__(
        self, database: Database, generations: Generations, kicker: Kicker, *, meter: TokenMeter | None
    ) -> None:
        self._database = database
        self._generations = generations
        self._kicker = kicker
        self._meter = meter

    async def store(
        self, principal: Principal, body: bytes, *, place: ImportPlace, on_conflict: OnConflict, dry_run: bool
    ) -> ImportPartDone:
        """Store the lines of a part up to the first that is wrong, or that the import is to stop at.

        Args:
            principal: Whose memories they become.
            body: Whole lines.
            place: Of the first of them.
            on_conflict: What becomes of a memory that is there with other content.
            dry_run: Nothing is stored, and quotas are not looked at.

        Raises:
            QuotaExceeded: The tenant may not have so many memories, or has no tokens left today. Nothing is stored.
            ErasureUnderWay: One is about somebody who is being erased. Nothing is stored.
            InvalidRequest: A session would hold too much. Nothing is stored.
            Conflict: Others kept changing the same memories. Nothing is stored.
        """
        part = await asyncio.to_thread(read_part, body, place)
        async for _ in attempts():
            try:
                done = await self._attempt(principal, part, before=place, on_conflict=on_conflict, dry_run=dry_run)
            except StopImportError as stop:
                part = _cut(part, stop.conflict)
                continue
            except Exception as error:
                if is_contention(error):
                    self._generations.forget(principal.tenant)
                    continue
                raise
            if done.counts.created or done.counts.overwritten:
                self._kicker.kick(principal.tenant)
            return done
        raise Conflict("others keep changing the same memories; try again", retry_after=1)

    async def _attempt(
        self, principal: Principal, part: ImportPart, *, before: ImportPlace, on_conflict: OnConflict, dry_run: bool
    ) -> ImportPartDone:
        tenant = principal.tenant
        async with self._database.tenant(tenant) as connection:
            known = await memories.find_by_id(tenant, connection, [its.line.id for its in part.memories])
        if dry_run:
            async with self._database.tenant(tenant) as connection:
                stored = await self._foresee(tenant, connection, part, known=known, on_conflict=on_conflict)
                if before.memory is not None and before.takes_history:
                    stored.takes.add(before.memory)
                entries = _entries_of(part, stored)
                stored.counts.history = await imports.count_missing_history(tenant, connection, entries)
                there = await observations.present(tenant, connection, [its.line.id for its in part.held])
                _count_held(stored, part, new=len(part.held) - len(there))
            return _done(part, stored, before)
        plan = await self._prepare(tenant, part, known)
        async with self._database.tenant(tenant) as connection:
            stored = await self._store(principal, connection, plan, before=before, on_conflict=on_conflict)
        return _done(part, stored, before)

    async def _prepare(self, tenant: TenantId, part: ImportPart, known: Mapping[UUID, Revision]) -> _Plan:
        """Words of new texts, and the tokens that they will cost."""
        new = [its.line for its in part.memories if has_new_text(known.get(its.line.id), its.line)]
        texts = await asyncio.to_thread(lambda: {line.id: words_of(line) for line in new})
        needed = sum(tokens_later(text_of(line)) for line in new if line.state == "active")
        if needed and self._meter is not None:
            allowance = await self._meter.allowance(tenant)
            if allowance is not None and needed > allowance.left:
                raise allowance.exceeded(f"these texts are taken to have {needed:,} tokens")
        generation = await self._generations.active(tenant)
        return _Plan(part=part, texts=texts, generation=generation.number)

    async def _store(
        self, principal: Principal, connection: Connection, plan: _Plan, *, before: ImportPlace, on_conflict: OnConflict
    ) -> Stored:
        """The transaction's work: what is there is looked at under locks, then what is not there is made."""
        tenant, part = principal.tenant, plan.part
        await imports.one_at_a_time(tenant, connection)
        ids = [its.line.id for its in part.memories]
        wanted = ids if before.memory is None else [before.memory, *ids]
        known = await memories.find_by_id(tenant, connection, wanted, lock=True)
        stored = Stored(counts=ImportCounts(), conflicts=[], takes=set())
        if before.memory is not None and before.memory in known and before.takes_history:
            stored.takes.add(before.memory)
        new = await self._hold(tenant, connection, part)
        _count_held(stored, part, new=new)
        charged = await self._make_new(principal, connection, plan, stored, known=known, on_conflict=on_conflict)
        as_told: list[MemoryLine] = []
        for its in part.memories:
            there = known.get(its.line.id)
            if there is None:
                continue
            if is_same(there, its.line):
                stored.counts.unchanged += 1
                stored.takes.add(its.line.id)
                as_told.append(its.line)
            elif on_conflict == "overwrite" and there.memory.external_id == its.line.external_id:
                overwritten = stored.counts.overwritten
                charged += await self._overwrite(principal, connection, plan, its, there=there, stored=stored)
                as_told += [its.line] if stored.counts.overwritten > overwritten else []
            else:
                note_clash(stored, conflict_of(its, "changed", its.line.id), on_conflict)
        if on_conflict == "overwrite":
            await merge_ledgers.take_over(tenant, connection, {line.id: line.merges for line in as_told})
        await observations.give_way(tenant, connection, [its.line.id for its in (*part.held, *part.memories)])
        entries = _entries_of(part, stored)
        stored.counts.history = await imports.add_history(tenant, connection, entries)
        if charged:
            await add_tokens(tenant, connection, charged)
        return stored

    async def _hold(self, tenant: TenantId, connection: Connection, part: ImportPart) -> int:
        """Let sessions hold what is neither held nor a memory, and return how many that were.

        Raises:
            InvalidRequest: A session would hold more than any can be read, or ended, at once, or two in one place.
        """
        there = await observations.present(tenant, connection, [its.line.id for its in part.held])
        new = [its for its in part.held if its.line.id not in there]
        if not new:
            return 0
        came = await observations.save(tenant, connection, came=[stored_observation(its.line) for its in new])
        sessions = {its.session: its.number for its in new}
        full = await observations.fullest(tenant, connection, sessions, most=MOST_HELD)
        if full is not None:
            raise invalid(f"/lines/{sessions[full]}/session_id", f"its session would hold more than {MOST_HELD:,}")
        twin = await observations.sharing_a_place(tenant, connection, came)
        if twin is not None:
            number = next(its.number for its in new if its.line.id == twin)
            raise invalid(f"/lines/{number}/observed_at", "must be another than that of all others in its session")
        return len(came)

    async def _make_new(
        self,
        principal: Principal,
        connection: Connection,
        plan: _Plan,
        stored: Stored,
        *,
        known: Mapping[UUID, Revision],
        on_conflict: OnConflict,
    ) -> int:
        """Insert what is not there, and return what its texts are charged."""
        tenant = principal.tenant
        new = [its for its in plan.part.memories if its.line.id not in known]
        if not new:
            return 0
        if any(its.line.id not in plan.texts for its in new):
            raise ChangedMeanwhileError  # it was there just now
        revisions = await imports.next_revisions(tenant, connection, [its.line.id for its in new])
        fresh = sorted((new_memory(its.line, rev=revisions[its.line.id]) for its in new), key=lock_order)
        made = await memory_writes.insert(principal, connection, fresh, generation=plan.generation, texts=plan.texts)
        left = [memory for memory in fresh if memory.id not in made]
        if await make_room(tenant, connection, [memory.dedup_key for memory in left if memory.is_active]):
            made |= await memory_writes.insert(
                principal, connection, left, generation=plan.generation, texts=plan.texts
            )
        stored.counts.created += len(made)
        stored.takes.update(made)
        blocked = [its for its in new if its.line.id not in made]
        for conflict in await clashes(tenant, connection, blocked):
            note_clash(stored, conflict, on_conflict)
        lines = (its.line for its in new if its.line.id in made)
        return sum(tokens_later(text_of(line)) for line in lines if line.state == "active")

    async def _overwrite(
        self,
        principal: Principal,
        connection: Connection,
        plan: _Plan,
        its: Numbered,
        *,
        there: Revision,
        stored: Stored,
    ) -> int:
        """Make a memory that is there what the line says, as a change like any other, and return what that costs."""
        tenant, line = principal.tenant, its.line
        amended = amended_by(there, line)
        text = plan.texts.get(line.id) if amended.new_text else None
        if amended.new_text and text is None:
            raise ChangedMeanwhileError
        change = amended.as_change(there, revive=there.memory.state != "active", text=text)
        await connection.execute("SAVEPOINT overwriting")
        try:
            await memory_writes.update(principal, connection, [change], generation=plan.generation)
        except PlaceTakenError:
            await connection.execute("ROLLBACK TO SAVEPOINT overwriting")
            if not await make_room(tenant, connection, [amended.dedup_key]):
                for conflict in await clashes(tenant, connection, [its]):
                    note_clash(stored, conflict, "skip")
                return 0
            await memory_writes.update(principal, connection, [change], generation=plan.generation)
        await connection.execute("RELEASE SAVEPOINT overwriting")
        if line.state != "active":
            await markers.hide(
                tenant,
                connection,
                [line.id],
                state=line.state,
                purge_at=line.purge_at,
                author=Author(principal.key_id, principal.request_id),
                merged_into={} if line.merged_into is None else {line.id: line.merged_into},
            )
        stored.counts.overwritten += 1
        return tokens_later(text_of(line)) if text is not None and line.state == "active" else 0

    async def _foresee(
        self,
        tenant: TenantId,
        connection: Connection,
        part: ImportPart,
        *,
        known: Mapping[UUID, Revision],
        on_conflict: OnConflict,
    ) -> Stored:
        """What would become of a part's memories."""
        stored = Stored(counts=ImportCounts(), conflicts=[], takes=set())
        found = await clashes(tenant, connection, part.memories)
        blocked = {conflict.id: conflict for conflict in found if conflict.other not in (None, conflict.id)}
        for its in part.memories:
            there = known.get(its.line.id)
            if there is None and (conflict := blocked.get(its.line.id)) is not None:
                note_clash(stored, conflict, on_conflict)
            elif there is None:
                stored.counts.created += 1
                stored.takes.add(its.line.id)
            elif is_same(there, its.line):
                stored.counts.unchanged += 1
                stored.takes.add(its.line.id)
            elif on_conflict == "overwrite" and there.memory.external_id == its.line.external_id:
                if (conflict := blocked.get(its.line.id)) is not None:
                    note_clash(stored, conflict, on_conflict)
                else:
                    stored.counts.overwritten += 1
            else:
                note_clash(stored, conflict_of(its, "changed", its.line.id), on_conflict)
        return stored


def _done(part: ImportPart, stored: Stored, before: ImportPlace) -> ImportPartDone:
    last = part.place.memory
    takes = before.takes_history if last == before.memory else last in stored.takes
    stored.counts.lines = part.place.line - before.line
    return ImportPartDone(
        place=msgspec.structs.replace(part.place, takes_history=takes),
        counts=stored.counts,
        conflicts=sorted(stored.conflicts, key=lambda conflict: conflict.line)[:LISTED],
        fault=part.fault,
        policy=part.policy,
        trailer=part.trailer,
    )


def _count_held(stored: Stored, part: ImportPart, *, new: int) -> None:
    stored.counts.observations = new
    stored.counts.observations_unchanged = len(part.held) - new


def _entries_of(part: ImportPart, stored: Stored) -> list[HistoryLine]:
    return [entry.line for entry in part.entries if entry.line.memory_id in stored.takes]


def _cut(part: ImportPart, conflict: ImportConflict) -> ImportPart:
    """What stands above the line of a conflict."""
    above = [its for its in part.memories if its.number < conflict.line]
    other = f"memory {conflict.other} stands in its place" if conflict.reason != "changed" else "it is here already"
    detail = f"the memory {conflict.id} conflicts ({conflict.reason}): {other}"
    fault = ImportFault(
        line=conflict.line,
        status=409,
        detail=detail,
        errors=[Fault(f"/lines/{conflict.line}", detail)],
        id=conflict.other,
    )
    return ImportPart(
        held=part.held,
        memories=above,
        entries=[entry for entry in part.entries if entry.number < conflict.line],
        place=msgspec.structs.replace(part.place, line=conflict.line, memory=above[-1].line.id if above else None),
        policy=part.policy,
        fault=fault,
    )

"""Forgetting memories, bringing them back, and hearing how useful they were."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

from memplane_core.contracts.markers import FeedbackCounts, FeedbackGiven, ForgetRequest, Forgotten
from memplane_core.domain.binding import narrowed, sees
from memplane_core.domain.errors import Conflict, NotFound, PreconditionFailed, invalid
from memplane_core.domain.filters import EVERYTHING, Filter, parse_filter
from memplane_core.domain.memory import Memory
from memplane_core.domain.ports import Kicker
from memplane_core.domain.tenancy import Principal
from memplane_core.storage import audit, idempotency, markers, matching, memories, merges, usage
from memplane_core.storage.idempotency import EFFECTS, Effect, Fingerprint
from memplane_core.storage.markers import Author
from memplane_core.storage.memories import Revision
from memplane_core.storage.session import Connection, Database
from memplane_core.web.repeats import Once, once
from memplane_retrieval.attempts import attempts, is_contention
from memplane_retrieval.generations import Generations

T = TypeVar("T")

BATCH: Final = 500
"""Memories of one transaction: it holds up whoever wants to change one of them for some tenths of a second."""

SAMPLE: Final = 20
_TIME_S: Final = 8.0

_CONTENDED: Final = "others keep changing this memory; try again"


class Markers:
    """Hides and shows memories of one request.

    Args:
        database: Of the memories.
        generations: Tells the tenant's policy.
        kicker: Told when the index has something to lose or to take.
        time_s: After so long no new batch is begun.
    """

    def __init__(
        self, database: Database, generations: Generations, kicker: Kicker, *, time_s: float = _TIME_S
    ) -> None:
        self._database = database
        self._generations = generations
        self._kicker = kicker
        self._time_s = time_s

    async def forget(
        self, principal: Principal, memory_id: UUID, *, if_match: int | None, fingerprint: Fingerprint | None
    ) -> Once[Memory]:
        """The memory, hidden until its `purge_at`. One that is forgotten already stays as it is.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            NotFound: There is none, or it has expired.
            PreconditionFailed: `if_match` is not its version.
            Conflict: It is merged into another, or others kept changing it.
        """
        policy = await self._generations.policy(principal.tenant)
        purge_at = datetime.now(UTC) + timedelta(days=policy.maintenance.forget_grace_days)

        async def hide(connection: Connection, found: Revision) -> None:
            if found.memory.state == "merged":
                raise _merged(found.memory)
            await markers.hide(
                principal.tenant,
                connection,
                [memory_id],
                state="forgotten",
                purge_at=purge_at,
                author=_author(principal),
            )

        return await self._change(principal, memory_id, if_match=if_match, fingerprint=fingerprint, change=hide)

    async def restore(
        self, principal: Principal, memory_id: UUID, *, if_match: int | None, fingerprint: Fingerprint | None
    ) -> Once[Memory]:
        """The memory as it was before it was forgotten or merged away. One that is active stays as it is.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight, NotFound, PreconditionFailed: As for `forget`.
            DuplicateMemory: An active memory has become the same meanwhile.
            QuotaExceeded: The tenant may not have so many memories.
            Conflict: Others kept changing it.
        """

        async def unhide(connection: Connection, found: Revision) -> None:
            author = _author(principal)
            if found.memory.state == "merged":
                await merges.restore(principal.tenant, connection, [memory_id], author=author)
            else:
                await markers.unhide(principal.tenant, connection, [memory_id], state="forgotten", author=author)

        return await self._change(principal, memory_id, if_match=if_match, fingerprint=fingerprint, change=unhide)

    async def _change(
        self,
        principal: Principal,
        memory_id: UUID,
        *,
        if_match: int | None,
        fingerprint: Fingerprint | None,
        change: Callable[[Connection, Revision], Awaitable[None]],
    ) -> Once[Memory]:
        tenant = principal.tenant

        async def act(connection: Connection) -> list[Effect]:
            found = await memories.read_revision(tenant, connection, memory_id, lock=True)
            await change(connection, _found(principal, found, if_match=if_match))
            return [Effect(str(memory_id))]

        done = await self._tried(lambda: once(tenant, self._database, fingerprint, kind=EFFECTS, act=act))
        if not done.replayed:
            self._kicker.kick(tenant)
        async with self._database.tenant(tenant) as connection:
            memory = (await memories.read(tenant, connection, [memory_id])).get(memory_id)
        if memory is None or not sees(principal, memory):
            raise NotFound("the memory that this request changed before is not there any more", id=memory_id)
        return Once(memory, done.replayed)

    async def feedback(
        self,
        principal: Principal,
        memory_id: UUID,
        *,
        given: FeedbackGiven,
        if_match: int | None,
        fingerprint: Fingerprint | None,
    ) -> Once[FeedbackCounts]:
        """What was said of the memory so far, this included. The memory does not change: no version, no history.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight, NotFound, PreconditionFailed: As for `forget`.
        """
        tenant = principal.tenant

        async def act(connection: Connection) -> list[Effect]:
            found = await memories.read_revision(tenant, connection, memory_id, lock=True)
            _found(principal, found, if_match=if_match)
            await usage.add_feedback(tenant, connection, memory_id, value=given.value)
            return [Effect(str(memory_id))]

        done = await self._tried(lambda: once(tenant, self._database, fingerprint, kind=EFFECTS, act=act))
        async with self._database.tenant(tenant) as connection:
            found = await memories.read_revision(tenant, connection, memory_id)
            _found(principal, found, if_match=None)
            counts = await usage.feedback_of(tenant, connection, memory_id)
        if counts is None:
            raise NotFound("there is no memory of this id")
        return Once(counts, done.replayed)

    async def forget_matching(
        self, principal: Principal, wanted: ForgetRequest, *, fingerprint: Fingerprint | None
    ) -> Once[Forgotten]:
        """Hide all active memories that match: a transaction for each `BATCH`, in the order of their ids.

        Whatever ends it in between, what is hidden stays hidden, and the same request hides the rest.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            InvalidRequest: The filter is empty, makes no sense, or names no user where the policy asks for one.
            Forbidden: It names somebody whom the caller's key is not bound to.
            Conflict: Others kept changing the same memories; some are hidden.
            Unavailable: The filter is too wide.
        """
        tenant = principal.tenant
        policy = await self._generations.policy(tenant)
        where = forgettable(wanted)
        where = narrowed(principal, where, require_user=policy.require_user)
        if wanted.dry_run:
            async with self._database.tenant(tenant) as connection:
                found = await matching.count_matching(tenant, connection, where=where, sample=SAMPLE)
            return Once(
                Forgotten(dry_run=True, forgotten=found.count, sample=found.sample, complete=True), replayed=False
            )
        if fingerprint is not None:
            async with self._database.tenant(tenant) as connection:
                before = await idempotency.recall(tenant, connection, fingerprint, kind=Forgotten)
            if before is not None:
                return Once(before, replayed=True)
        purge_at = datetime.now(UTC) + timedelta(days=policy.maintenance.forget_grace_days)
        return await self._in_batches(principal, where, purge_at=purge_at, fingerprint=fingerprint)

    async def _in_batches(
        self, principal: Principal, where: Filter, *, purge_at: datetime, fingerprint: Fingerprint | None
    ) -> Once[Forgotten]:
        tenant = principal.tenant
        ends_at = time.monotonic() + self._time_s
        done, sample, after, last = 0, list[UUID](), None, False
        while not last and (done == 0 or time.monotonic() < ends_at):
            place = after

            async def batch(place: UUID | None = place) -> list[UUID]:
                async with self._database.tenant(tenant) as connection:
                    ids = await matching.lock_matching(tenant, connection, where=where, after=place, limit=BATCH)
                    if ids:
                        await markers.hide(
                            tenant,
                            connection,
                            ids,
                            state="forgotten",
                            purge_at=purge_at,
                            author=_author(principal),
                        )
                        await _tell(principal, connection, count=len(ids))
                    return ids

            hidden = await self._tried(batch)
            done += len(hidden)
            sample = (sample + hidden)[:SAMPLE]
            last = len(hidden) < BATCH
            after = hidden[-1] if hidden else after
            if hidden:
                self._kicker.kick(tenant)
        outcome = Forgotten(dry_run=False, forgotten=done, sample=sample, complete=last)

        async def settled(_connection: Connection) -> Forgotten:
            return outcome

        return await once(tenant, self._database, fingerprint, kind=Forgotten, act=settled)

    async def _tried(self, act: Callable[[], Awaitable[T]]) -> T:
        async for _ in attempts():
            try:
                return await act()
            except Exception as error:
                if not is_contention(error):
                    raise
        raise Conflict(_CONTENDED, retry_after=1)


def forgettable(wanted: ForgetRequest) -> Filter:
    """The filter of a request. Raises InvalidRequest where it would match everything, or makes no sense."""
    where = parse_filter(wanted.filters)
    if where == EVERYTHING:
        raise invalid("/filters", "must hold at least one condition: an empty filter would forget everything")
    return where


async def _tell(principal: Principal, connection: Connection, *, count: int) -> None:
    await audit.record(
        connection,
        tenant=principal.tenant,
        actor=principal.key_id,
        action="forgetMemories",
        target="",
        result="done",
        source=principal.source,
        request_id=principal.request_id,
        details={"forgotten": count},
    )


def _author(principal: Principal) -> Author:
    return Author(principal.key_id, principal.request_id)


def _merged(memory: Memory) -> Conflict:
    return Conflict(f"this memory is merged into {memory.merged_into}: undo the merge first", id=memory.merged_into)


def _found(principal: Principal, revision: Revision | None, *, if_match: int | None) -> Revision:
    if revision is None or not sees(principal, revision.memory):
        raise NotFound("there is no memory of this id")
    if if_match is not None and revision.memory.version != if_match:
        raise PreconditionFailed(f"the memory has version {revision.memory.version}, not {if_match}")
    return revision

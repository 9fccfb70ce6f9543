"""Merging the memories that a request names, and taking merges back."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from memplane_core.contracts.merges import MAX_MERGED, Merged, MergeRequest, Undone
from memplane_core.domain.binding import sees
from memplane_core.domain.errors import Conflict, Fault, InvalidRequest, MemplaneError, NotFound
from memplane_core.domain.merge_ledger import MOST_TAKEN
from memplane_core.domain.merging import SCENES, by_rank
from memplane_core.domain.ports import Kicker
from memplane_core.domain.tenancy import Principal
from memplane_core.storage import memories, merges
from memplane_core.storage.idempotency import EFFECTS, Effect, Fingerprint
from memplane_core.storage.markers import Author
from memplane_core.storage.merges import Joining, Mergeable
from memplane_core.storage.session import Connection, Database
from memplane_core.web.repeats import Once, once
from memplane_retrieval.attempts import attempts, is_contention
from memplane_retrieval.generations import Generations

T = TypeVar("T")


class Merger:
    """Makes one of memories that somebody says are one.

    Args:
        database: Of the memories.
        generations: Tells the tenant's policy.
        kicker: Told when the index has something to lose or to take.
    """

    def __init__(self, database: Database, generations: Generations, kicker: Kicker) -> None:
        self._database = database
        self._generations = generations
        self._kicker = kicker

    async def merge(
        self, principal: Principal, request: MergeRequest, *, fingerprint: Fingerprint | None
    ) -> Once[Merged]:
        """All or nothing. What may be merged is the caller's to judge; nothing but whose they are is compared.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            NotFound: One is not there, has expired, or is not the caller's.
            InvalidRequest: They are not of one user, agent, type and time of holding.
            Conflict: One is hidden already, or pinned and would go; or together they have too many scenes, or too many
                would stand behind one.
        """
        tenant = principal.tenant
        policy = await self._generations.policy(tenant)
        purge_at = datetime.now(UTC) + timedelta(days=policy.maintenance.forget_grace_days)

        async def act(connection: Connection) -> list[Effect]:
            locked = await merges.lock(tenant, connection, request.ids)
            survivor = _survivor(principal, request, locked)
            others = [its for its in locked.values() if its.id != survivor.id]
            author = Author(principal.key_id, principal.request_id)
            joining = Joining(survivor=survivor, others=others)
            await merges.merge(tenant, connection, [joining], purge_at=purge_at, author=author)
            return [Effect(str(its.id)) for its in (survivor, *others)]

        done = await self._tried(lambda: once(tenant, self._database, fingerprint, kind=EFFECTS, act=act))
        if not done.replayed:
            self._kicker.kick(tenant)
        survivor, *others = (UUID(effect.id) for effect in done.outcome)
        async with self._database.tenant(tenant) as connection:
            memory = (await memories.read(tenant, connection, [survivor])).get(survivor)
        if memory is None or not sees(principal, memory):
            raise NotFound("the memory that this request merged others into is not there any more", id=survivor)
        return Once(Merged(survivor=memory, merged=others), done.replayed)

    async def undo(self, principal: Principal, survivor: UUID, *, fingerprint: Fingerprint | None) -> Once[Undone]:
        """Restore what was merged into a memory, `MAX_MERGED` at a time; those of others are passed over.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            NotFound: There is no such memory, nor any that was merged into it.
            DuplicateMemory, QuotaExceeded: See `storage.markers.unhide`.
        """
        tenant = principal.tenant

        async def act(connection: Connection) -> Undone:
            ids = await merges.merged_into(tenant, connection, survivor, limit=MAX_MERGED + 1)
            found = await memories.read(tenant, connection, [survivor, *ids], also_expired=True)
            own = [memory_id for memory_id in ids if memory_id in found and sees(principal, found[memory_id])]
            if not own and (survivor not in found or not sees(principal, found[survivor])):
                raise NotFound("there is no memory of this id")
            author = Author(principal.key_id, principal.request_id)
            back = await merges.restore(tenant, connection, own[:MAX_MERGED], author=author)
            return Undone(restored=back, complete=len(own) <= MAX_MERGED)

        done = await self._tried(lambda: once(tenant, self._database, fingerprint, kind=Undone, act=act))
        if not done.replayed:
            self._kicker.kick(tenant)
        return done

    async def _tried(self, act: Callable[[], Awaitable[T]]) -> T:
        async for _ in attempts():
            try:
                return await act()
            except Exception as error:
                if not is_contention(error):
                    raise
        raise Conflict("others keep changing these memories; try again", retry_after=1)


def _survivor(principal: Principal, request: MergeRequest, locked: Mapping[UUID, Mergeable]) -> Mergeable:
    """The one that stays, if all may be merged."""
    found = [its if (its := locked.get(memory_id)) and _visible(principal, its) else None for memory_id in request.ids]
    _refuse(NotFound, [None if its else "is no memory" for its in found])
    together = [its for its in found if its is not None]
    _refuse(Conflict, [None if its.state == "active" else f"is {its.state} already" for its in together])
    first = together[0]
    _refuse(InvalidRequest, [_apart(its, first) for its in together])
    chosen = request.survivor or by_rank(its.candidate for its in together)[0].id
    pinned = [its.candidate.pinned and its.id != chosen for its in together]
    _refuse(Conflict, ["is pinned: it can be the survivor, or be unpinned" if its else None for its in pinned])
    scenes = len({scene for its in together for scene in its.candidate.scene})
    if scenes > SCENES:
        raise Conflict(f"together they have {scenes} scenes, and a memory has at most {SCENES}")
    survivor = locked[chosen]
    behind = len(request.ids) - 1 + (len(survivor.ledger.taken) if survivor.ledger else 0)
    if behind > MOST_TAKEN:
        raise Conflict(f"it would stand for {behind:,} others, and a memory stands for at most {MOST_TAKEN:,}")
    return survivor


def _visible(principal: Principal, its: Mergeable) -> bool:
    return not its.expired and all(getattr(its, name) == value for name, value in principal.bind.items())


def _apart(its: Mergeable, first: Mergeable) -> str | None:
    for name, said in (("user_id", "user"), ("agent_id", "agent"), ("memory_type", "type")):
        if getattr(its, name) != getattr(first, name):
            return f"is of another {said} than /ids/0"
    return None if its.holds_with(first) else "has another valid_from or valid_to than /ids/0"


def _refuse(kind: type[MemplaneError], wrong: Sequence[str | None]) -> None:
    faults = [Fault(f"/ids/{n}", detail) for n, detail in enumerate(wrong) if detail is not None]
    if faults:
        raise kind(f"{faults[0].pointer} {faults[0].detail}", faults=faults)

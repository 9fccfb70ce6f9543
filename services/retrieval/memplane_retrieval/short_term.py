"""Short-term memory: observations taken one transaction each, and what has to leave made into memories in the same."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from memplane_core.contracts.checks import text_faults
from memplane_core.contracts.memories import SessionRef
from memplane_core.contracts.observations import (
    ObservationPage,
    ObservationTaken,
    Observed,
    SessionEnded,
)
from memplane_core.contracts.policy import Policy
from memplane_core.domain.binding import check_fields, sees
from memplane_core.domain.chunking import FindableText
from memplane_core.domain.errors import Conflict, EmbeddingUnavailable, NotFound, invalid
from memplane_core.domain.index import Generation
from memplane_core.domain.observations import MOST_HELD, Observation, Session, ShortTermRules, alike_from, take
from memplane_core.domain.ports import Embedder, Kicker
from memplane_core.domain.tenancy import Principal, TenantId
from memplane_core.storage import audit, idempotency, memories, observations
from memplane_core.storage.idempotency import EFFECTS, Effect, Fingerprint
from memplane_core.storage.new_memories import NewMemory
from memplane_core.storage.observations import Buffer, StoredObservation, observed_at_of, seq_of
from memplane_core.storage.session import Connection, Database
from memplane_core.web.repeats import Once, once
from memplane_retrieval.attempts import attempts, is_contention
from memplane_retrieval.changes import new_memory
from memplane_retrieval.embedding import Chunker, TextToChunk
from memplane_retrieval.generations import Generations
from memplane_retrieval.promotion import promote


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request made ready outside of any transaction.

    Attributes:
        fresh: What it observes; `seq` and `observed_at` are given under the session's lock.
        alike_from: See `domain.observations.take`.
    """

    session: Session
    fresh: list[StoredObservation]
    rules: ShortTermRules
    alike_from: float
    generation: int


class ShortTerm:
    """Takes observations and takes them back, reads what sessions hold, and ends sessions.

    Args:
        database: Where.
        generations: Tells a tenant's policy and active generation.
        chunker: Embeds observations as memories are embedded.
        embedder: Tells what the tenant's model calls alike.
        kicker: Told when there is something to index.
    """

    def __init__(
        self, database: Database, generations: Generations, chunker: Chunker, *, embedder: Embedder, kicker: Kicker
    ) -> None:
        self._database = database
        self._generations = generations
        self._chunker = chunker
        self._embedder = embedder
        self._kicker = kicker
        # Whoever waits for a session's turn in this process does so without a connection, which others need.
        self._turns: WeakValueDictionary[tuple[TenantId, Session], asyncio.Lock] = WeakValueDictionary()

    async def observe(
        self,
        principal: Principal,
        session: SessionRef,
        *,
        observed: Sequence[Observed],
        batch: bool,
        fingerprint: Fingerprint | None,
    ) -> Once[list[ObservationTaken]]:
        """Take what a session observes, in order: all of it with all that comes of it, or nothing.

        Args:
            principal: Whose session it is.
            session: Which.
            observed: Checked for what its types cannot say.
            batch: Whether errors point into `/observations/<n>`.
            fingerprint: Of the request, where it came with an Idempotency-Key.

        Raises:
            Forbidden: The session names somebody whom the caller's key is not bound to.
            InvalidRequest: It names no user, and the tenant's policy asks for it; or a time is out of range.
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            QuotaExceeded: The tenant may not have as much stored as this would make, or has no tokens left today.
            Conflict: Others were in the way for too long.
        """
        tenant = principal.tenant
        kind = list[ObservationTaken]
        policy = await self._generations.policy(tenant)
        whose = session_of(principal, session, policy=policy)
        if fingerprint is not None:
            async with self._database.tenant(tenant) as connection:
                before = await idempotency.recall(tenant, connection, fingerprint, kind=kind)
            if before is not None:
                return Once(before, replayed=True)
        async for _ in attempts():
            plan = await self._plan(tenant, whose, observed, policy=policy, batch=batch)

            async def act(connection: Connection, plan: _Plan = plan) -> list[ObservationTaken]:
                return await self._take(principal, connection, plan)

            try:
                async with self._turn(tenant, whose):
                    done = await once(tenant, self._database, fingerprint, kind=kind, act=act)
            except Exception as error:
                if is_contention(error):
                    self._generations.forget(tenant)  # another may be active by now
                    continue
                raise
            if any(taken.promoted for taken in done.outcome):
                self._kicker.kick(tenant)
            return done
        raise Conflict("others keep being in the way; try again", retry_after=1)

    async def end(
        self, principal: Principal, session: SessionRef, *, fingerprint: Fingerprint | None
    ) -> Once[SessionEnded]:
        """Make memories of all that a session holds, in order. Ending it again does nothing.

        Errors as of `observe`.
        """
        tenant = principal.tenant
        whose = session_of(principal, session, policy=await self._generations.policy(tenant))
        async for _ in attempts():
            generation = (await self._generations.active(tenant)).number

            async def act(connection: Connection, generation: int = generation) -> SessionEnded:
                buffer = await observations.lock_session(tenant, connection, whose)
                await promote(principal, connection, buffer.stored, generation=generation)
                ids = [its.observation.id for its in buffer.stored]
                await observations.save(tenant, connection, gone=ids)
                return SessionEnded(promoted=ids)

            try:
                async with self._turn(tenant, whose):
                    done = await once(tenant, self._database, fingerprint, kind=SessionEnded, act=act)
            except Exception as error:
                if is_contention(error):
                    self._generations.forget(tenant)
                    continue
                raise
            if done.outcome.promoted:
                self._kicker.kick(tenant)
            return done
        raise Conflict("others keep being in the way; try again", retry_after=1)

    async def delete(
        self, principal: Principal, observation_id: UUID, *, fingerprint: Fingerprint | None
    ) -> Once[None]:
        """Take an observation back that a session holds: it is nowhere any more, and becomes no memory.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See `storage.idempotency`.
            NotFound: No session of the caller's holds it; says so where there is a memory of this id by now.
            Conflict: Others were in the way for too long.
        """
        tenant = principal.tenant
        async with self._database.tenant(tenant) as connection:
            whose = await observations.session_of(tenant, connection, observation_id)
            if whose is None or not sees(principal, whose):
                # Asked after it was looked for: who has deleted it in between has also left this.
                if fingerprint and await idempotency.recall(tenant, connection, fingerprint, kind=EFFECTS):
                    return Once(None, replayed=True)
                raise await _not_held(principal, connection, observation_id)

        async def act(connection: Connection) -> list[Effect]:
            await observations.hold_session(tenant, connection, whose)
            if not await observations.delete_observation(tenant, connection, observation_id):
                raise await _not_held(principal, connection, observation_id)
            await audit.record(
                connection,
                tenant=tenant,
                actor=principal.key_id,
                action="deleteObservation",
                target=str(observation_id),
                result="done",
                source=principal.source,
                request_id=principal.request_id,
            )
            return [Effect(str(observation_id))]

        async for _ in attempts():
            try:
                async with self._turn(tenant, whose):
                    done = await once(tenant, self._database, fingerprint, kind=EFFECTS, act=act)
            except Exception as error:
                if is_contention(error):
                    continue
                raise
            return Once(None, done.replayed)
        raise Conflict("others keep being in the way; try again", retry_after=1)

    async def page(
        self, principal: Principal, session: SessionRef, *, limit: int, cursor: str | None
    ) -> ObservationPage:
        """A page of what a session holds, oldest first. Reading changes nothing.

        Raises:
            Forbidden: The session names somebody whom the caller's key is not bound to.
            InvalidRequest: It names no user, and the tenant's policy asks for it; or the cursor is none.
        """
        tenant = principal.tenant
        whose = session_of(principal, session, policy=await self._generations.policy(tenant), pointer="")
        after = _place_of(cursor)
        async with self._database.tenant(tenant) as connection:
            found = await observations.session_page(tenant, connection, whose, after=after, limit=limit + 1)
        results = found[:limit]
        return ObservationPage(
            results=[place.observation for place in results],
            next_cursor=str(results[-1].seq) if len(found) > limit else None,
        )

    async def read(self, principal: Principal, session: SessionRef, *, pointer: str) -> list[Observation]:
        """All that a session holds, oldest first. Errors as of `page`; `pointer` is of the session in the body."""
        tenant = principal.tenant
        whose = session_of(principal, session, policy=await self._generations.policy(tenant), pointer=pointer)
        async with self._database.tenant(tenant) as connection:
            return await observations.read_session(tenant, connection, whose, limit=_ALL)

    def _turn(self, tenant: TenantId, session: Session) -> asyncio.Lock:
        return self._turns.setdefault((tenant, session), asyncio.Lock())

    async def _plan(
        self, tenant: TenantId, session: Session, observed: Sequence[Observed], *, policy: Policy, batch: bool
    ) -> _Plan:
        rules = policy.short_term
        generation = await self._generations.active(tenant)
        now = datetime.now(UTC)
        named = SessionRef(**msgspec.structs.asdict(session))
        drafts = [
            new_memory(
                its.as_write(named),
                now=now + timedelta(microseconds=n),
                policy=policy,
                pointer=f"/observations/{n}" if batch else "",
            )
            for n, its in enumerate(observed)
        ]
        wanted = [draft for draft in drafts if rules.needs_vectors and draft.importance >= rules.threshold]
        texts = await self._chunker.texts(
            tenant,
            [TextToChunk(draft.content, draft.actor, draft.occurred_at) for draft in wanted],
            generation=generation,
        )
        chunked = {draft.id: text for draft, text in zip(wanted, texts, strict=True) if text.embedded}
        return _Plan(
            session=session,
            fresh=[_fresh(draft, chunked.get(draft.id), generation=generation) for draft in drafts],
            rules=rules,
            alike_from=await self._alike_from(rules, generation),
            generation=generation.number,
        )

    async def _alike_from(self, rules: ShortTermRules, generation: Generation) -> float:
        if rules.kind == "fifo" or rules.enhance_similarity_threshold is not None:
            return alike_from(rules, span=0.0)
        try:
            return alike_from(rules, span=(await self._embedder.profile(generation.model)).span)
        except (EmbeddingUnavailable, NotFound):  # then there are no vectors to compare either
            return alike_from(rules, span=0.0)

    async def _take(self, principal: Principal, connection: Connection, plan: _Plan) -> list[ObservationTaken]:
        """The transaction's work."""
        buffer = await observations.lock_session(principal.tenant, connection, plan.session)
        fresh = _placed(plan.fresh, buffer)
        known = {its.observation.id: its for its in (*buffer.stored, *fresh)}
        held = tuple(its.held(generation=plan.generation) for its in buffer.stored)
        results: list[ObservationTaken] = []
        for its in fresh:
            taken = take(held, its.held(generation=plan.generation), rules=plan.rules, alike_from=plan.alike_from)
            held = taken.held
            results.append(
                ObservationTaken(
                    id=its.observation.id,
                    kept=taken.kept,
                    importance=its.observation.importance,
                    strengthened=list(taken.strengthened),
                    promoted=list(taken.promoted),
                    dropped=list(taken.dropped),
                )
            )
        leaving = [known[name] for result in results for name in result.promoted]
        await promote(principal, connection, leaving, generation=plan.generation)
        after = {its.id: its.strengthened for its in held}
        was = {its.observation.id: its.observation.strengthened for its in buffer.stored}
        await observations.save(
            principal.tenant,
            connection,
            came=[_strengthened(its, after[its.observation.id]) for its in fresh if its.observation.id in after],
            strengthened={name: count for name, count in after.items() if name in was and count != was[name]},
            gone=[name for name in was if name not in after],
        )
        return results


_ALL: Final = 2 * MOST_HELD
"""More than any session holds."""


def session_of(principal: Principal, named: SessionRef, *, policy: Policy, pointer: str = "/") -> Session:
    """The session that a request names, with what the caller's key is bound to filled in.

    Raises:
        Forbidden: It names somebody else.
        InvalidRequest: It names no user, and the policy asks for it.
    """
    given = {
        name: value
        for name, value in (("user_id", named.user_id), ("agent_id", named.agent_id))
        if not isinstance(value, msgspec.UnsetType)
    }
    asked = {"user_id": principal.bind_user_id, **given} if policy.require_user else given
    check_fields(principal, asked, require_user=policy.require_user, pointer=pointer)
    whose = {**given, **principal.bind}
    return Session(user_id=whose.get("user_id"), agent_id=whose.get("agent_id"), session_id=named.session_id)


async def _not_held(principal: Principal, connection: Connection, observation_id: UUID) -> NotFound:
    """What to say of an observation that no session holds."""
    found = await memories.read(principal.tenant, connection, [observation_id])
    memory = found.get(observation_id)
    if memory is None or not sees(principal, memory):
        return NotFound("no session holds an observation of this id")
    return NotFound("no session holds it any more: it is a memory, which DELETE /v1/memories/{id} deletes")


def _place_of(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if text_faults(cursor, "cursor", 19) or not (cursor.isascii() and cursor.isdecimal()) or int(cursor) >= 2**63:
        raise invalid("cursor", "must be the next_cursor of an earlier page of this list")
    return int(cursor)


def _fresh(draft: NewMemory, text: FindableText | None, *, generation: Generation) -> StoredObservation:
    assert draft.session_id is not None
    fields = {
        name: getattr(draft, name)
        for name in Observation.__struct_fields__
        if name not in ("strengthened", "observed_at")
    }
    return StoredObservation(
        observation=Observation(**fields, strengthened=0, observed_at=draft.occurred_at),
        seq=0,
        occurred_given=draft.occurred_given,
        unscored=draft.unscored,
        generation=None if text is None else generation.number,
        chunks=[] if text is None else text.chunks,
    )


def _placed(fresh: Sequence[StoredObservation], buffer: Buffer) -> list[StoredObservation]:
    """`fresh` behind all that the session holds, whatever the clock says."""
    first = seq_of(buffer.now)
    if buffer.stored:
        first = max(first, buffer.stored[-1].seq + 1)
    return [
        msgspec.structs.replace(
            its,
            seq=first + n,
            observation=msgspec.structs.replace(its.observation, observed_at=observed_at_of(first + n)),
        )
        for n, its in enumerate(fresh)
    ]


def _strengthened(its: StoredObservation, count: int) -> StoredObservation:
    return msgspec.structs.replace(its, observation=msgspec.structs.replace(its.observation, strengthened=count))

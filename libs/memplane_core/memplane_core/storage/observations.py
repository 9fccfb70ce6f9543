"""What sessions hold in short-term memory: one session's buffer is read and changed by one transaction at a time."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np

from memplane_core.domain.chunking import Chunk
from memplane_core.domain.embedding import Window
from memplane_core.domain.index import FloatArray
from memplane_core.domain.observations import Held, Observation, Session
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.exact_json import exact_json
from memplane_core.storage.session import Connection, Row, pack_vector

COLUMNS: Final = """
    o.id, o.content, o.actor, o.scene, o.source, o.memory_type, o.user_id, o.agent_id, o.session_id, o.importance,
    o.metadata, o.occurred_at, o.observed_at, o.strengthened
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_OF_SESSION: Final = """
    o.tenant_id = $1 AND o.session_id = $2
    AND o.user_id IS NOT DISTINCT FROM $3 AND o.agent_id IS NOT DISTINCT FROM $4
"""


class StoredObservation(msgspec.Struct, frozen=True, kw_only=True):
    """An observation with what its record does not show.

    Attributes:
        seq: Its place among the session's, in microseconds of the database's clock.
        occurred_given: False where `occurred_at` is only the time of the request.
        unscored: Nobody gave its importance, and a language model is to say what the memory's is.
        generation: That its chunks were made for; None where it has none.
        chunks: Windows with vectors; empty where it has not been embedded.
    """

    observation: Observation
    seq: int
    occurred_given: bool
    unscored: bool
    generation: int | None
    chunks: list[Chunk]

    def held(self, *, generation: int) -> Held:
        """What the rules look at of it; without vectors where they are of another generation."""
        vectors = [chunk.vector for chunk in self.chunks if chunk.vector is not None]
        return Held(
            id=self.observation.id,
            importance=self.observation.importance,
            strengthened=self.observation.strengthened,
            vectors=np.stack(vectors) if vectors and self.generation == generation else None,
        )


def seq_of(observed_at: datetime) -> int:
    """The place of an observation in its session."""
    return (observed_at - _EPOCH) // timedelta(microseconds=1)


def observed_at_of(seq: int) -> datetime:
    """The reverse of `seq_of`."""
    return _EPOCH + timedelta(microseconds=seq)


class Buffer(msgspec.Struct, frozen=True):
    """A session's observations, oldest first, and the moment at which they were read."""

    now: datetime
    stored: list[StoredObservation]


async def read_session(tenant: TenantId, connection: Connection, session: Session, *, limit: int) -> list[Observation]:
    """The newest `limit` observations that a session holds, oldest first. Reads alone, and waits for nobody."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS} FROM observation o WHERE {_OF_SESSION} ORDER BY o.seq DESC LIMIT $5",
        tenant,
        session.session_id,
        session.user_id,
        session.agent_id,
        limit,
    )
    return [_observation(row) for row in reversed(rows)]


class Place(msgspec.Struct, frozen=True):
    """An observation and its place in its session."""

    seq: int
    observation: Observation


async def session_page(
    tenant: TenantId, connection: Connection, session: Session, *, after: int | None, limit: int
) -> list[Place]:
    """What a session holds after the place `after`, oldest first."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS}, o.seq FROM observation o WHERE {_OF_SESSION} AND ($5::bigint IS NULL OR o.seq > $5)"
        " ORDER BY o.seq LIMIT $6",
        tenant,
        session.session_id,
        session.user_id,
        session.agent_id,
        after,
        limit,
    )
    return [Place(row["seq"], _observation(row)) for row in rows]


async def observations_after(
    tenant: TenantId, connection: Connection, *, after: UUID | None, limit: int
) -> list[StoredObservation]:
    """What all sessions hold, in the order of ids from the one behind `after`, without vectors."""
    rows = await connection.fetch(
        f"""
        SELECT {COLUMNS}, o.seq, o.occurred_given, o.unscored, NULL::int AS generation, NULL::int[] AS spans,
            NULL::vector[] AS vectors
        FROM observation o WHERE o.tenant_id = $1 AND ($2::uuid IS NULL OR o.id > $2) ORDER BY o.id LIMIT $3
        """,
        tenant,
        after,
        limit,
    )
    return [_stored(row) for row in rows]


async def present(tenant: TenantId, connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Which of these observations are held, or are memories by now."""
    rows = await connection.fetch(
        "SELECT id FROM observation WHERE tenant_id = $1 AND id = ANY($2::uuid[])"
        " UNION SELECT id FROM memory WHERE tenant_id = $1 AND id = ANY($2::uuid[])",
        tenant,
        list(ids),
    )
    return {row["id"] for row in rows}


async def fullest(
    tenant: TenantId, connection: Connection, sessions: Collection[Session], *, most: int
) -> Session | None:
    """One of these sessions that holds more than `most` observations, if there is one."""
    found = await connection.fetchrow(
        """
        SELECT s.user_id, s.agent_id, s.session_id
        FROM unnest($2::text[], $3::text[], $4::text[]) AS s(user_id, agent_id, session_id)
        WHERE (
            SELECT count(*) FROM observation o WHERE o.tenant_id = $1 AND o.session_id = s.session_id
                AND o.user_id IS NOT DISTINCT FROM s.user_id AND o.agent_id IS NOT DISTINCT FROM s.agent_id
        ) > $5 LIMIT 1
        """,
        tenant,
        [its.user_id for its in sessions],
        [its.agent_id for its in sessions],
        [its.session_id for its in sessions],
        most,
    )
    if found is None:
        return None
    return Session(user_id=found["user_id"], agent_id=found["agent_id"], session_id=found["session_id"])


async def sharing_a_place(tenant: TenantId, connection: Connection, ids: Sequence[UUID]) -> UUID | None:
    """One of these observations that has the same place in its session as another, if there is one."""
    return await connection.fetchval(
        """
        SELECT o.id FROM observation o WHERE o.tenant_id = $1 AND o.id = ANY($2::uuid[]) AND EXISTS (
            SELECT FROM observation e
            WHERE e.tenant_id = $1 AND e.session_id = o.session_id AND e.seq = o.seq AND e.id <> o.id
                AND e.user_id IS NOT DISTINCT FROM o.user_id AND e.agent_id IS NOT DISTINCT FROM o.agent_id)
        ORDER BY o.id DESC LIMIT 1
        """,
        tenant,
        list(ids),
    )


async def give_way(tenant: TenantId, connection: Connection, ids: Sequence[UUID]) -> None:
    """Hold none of these any more that is a memory by now. A statement of its own, behind whatever has waited."""
    await connection.execute(
        """
        DELETE FROM observation o WHERE o.tenant_id = $1 AND o.id = ANY($2::uuid[])
            AND EXISTS (SELECT FROM memory m WHERE m.tenant_id = $1 AND m.id = o.id)
        """,
        tenant,
        list(ids),
    )


async def session_of(tenant: TenantId, connection: Connection, observation_id: UUID) -> Session | None:
    """The session that holds an observation; None where none does."""
    row = await connection.fetchrow(
        "SELECT user_id, agent_id, session_id FROM observation WHERE tenant_id = $1 AND id = $2",
        tenant,
        observation_id,
    )
    if row is None:
        return None
    return Session(user_id=row["user_id"], agent_id=row["agent_id"], session_id=row["session_id"])


async def delete_observation(tenant: TenantId, connection: Connection, observation_id: UUID) -> bool:
    """Delete one of a session that this transaction has locked; False where it is not held any more."""
    gone = await connection.fetchval(
        "DELETE FROM observation WHERE tenant_id = $1 AND id = $2 RETURNING true", tenant, observation_id
    )
    return gone is not None


async def hold_session(tenant: TenantId, connection: Connection, session: Session) -> None:
    """Wait until nobody else changes a session's buffer, and let nobody do so until the transaction ends."""
    name = msgspec.json.encode([session.user_id, session.agent_id, session.session_id]).decode()
    await connection.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended('session ' || $1::uuid::text || $2, 0))", tenant, name
    )


async def lock_session(tenant: TenantId, connection: Connection, session: Session) -> Buffer:
    """A session's buffer, which nobody else changes until the transaction ends."""
    await hold_session(tenant, connection, session)
    # A statement of its own: it has to see what whoever held the lock has committed.
    rows = await connection.fetch(
        f"""
        SELECT {COLUMNS}, o.seq, o.occurred_given, o.unscored, o.generation, o.spans, o.vectors, clock.now
        FROM (SELECT clock_timestamp() AS now) clock LEFT JOIN observation o ON {_OF_SESSION} ORDER BY o.seq
        """,
        tenant,
        session.session_id,
        session.user_id,
        session.agent_id,
    )
    return Buffer(rows[0]["now"], [_stored(row) for row in rows if row["id"] is not None])


async def save(
    tenant: TenantId,
    connection: Connection,
    *,
    came: Sequence[StoredObservation] = (),
    strengthened: Mapping[UUID, int] | None = None,
    gone: Sequence[UUID] = (),
) -> list[UUID]:
    """Change a buffer that this transaction has locked.

    Args:
        tenant: Whose it is.
        connection: The transaction.
        came: To be held from now on; one whose id is held already is left out.
        strengthened: How often those that are held have been strengthened from now on.
        gone: Those that leave.

    Returns:
        Ids of `came` that were not there.
    """
    if gone:
        await connection.execute(
            "DELETE FROM observation WHERE tenant_id = $1 AND id = ANY($2::uuid[])", tenant, list(gone)
        )
    if strengthened:
        await connection.execute(
            """
            UPDATE observation o SET strengthened = i.strengthened
            FROM unnest($2::uuid[], $3::int[]) AS i(id, strengthened) WHERE o.tenant_id = $1 AND o.id = i.id
            """,
            tenant,
            list(strengthened),
            list(strengthened.values()),
        )
    if not came:
        return []
    chunks = [(its.observation.id, chunk) for its in came for chunk in its.chunks if chunk.vector is not None]
    rows = await connection.fetch(
        """
        INSERT INTO observation (
            tenant_id, id, seq, user_id, agent_id, session_id, content, actor, scene, source, memory_type, importance,
            unscored, metadata, occurred_at, occurred_given, observed_at, strengthened, generation, spans, vectors)
        SELECT $1, r.id, seq, user_id, agent_id, session_id, content, actor, scene, source, memory_type, importance,
            unscored, metadata, occurred_at, occurred_given, observed_at, strengthened, generation, spans,
            (SELECT array_agg(c.vector ORDER BY c.n)
                FROM unnest($3::uuid[], $4::int[], $5::vector[]) AS c(id, n, vector) WHERE c.id = r.id)
        FROM json_to_recordset($2::json) AS r(
            id uuid, seq bigint, user_id text, agent_id text, session_id text, content text, actor text, scene text[],
            source text, memory_type text, importance float8, unscored boolean, metadata jsonb, occurred_at timestamptz,
            occurred_given boolean, observed_at timestamptz, strengthened int, generation int, spans int[])
        ON CONFLICT DO NOTHING
        RETURNING id
        """,
        tenant,
        msgspec.json.encode([_record(its) for its in came]).decode(),
        [observation_id for observation_id, _ in chunks],
        [chunk.n for _, chunk in chunks],
        [pack_vector(chunk.vector) for _, chunk in chunks if chunk.vector is not None],
    )
    return [row["id"] for row in rows]


def _record(its: StoredObservation) -> dict[str, Any]:
    return msgspec.structs.asdict(its.observation) | {
        "metadata": msgspec.Raw(exact_json(its.observation.metadata)),
        "seq": its.seq,
        "occurred_given": its.occurred_given,
        "unscored": its.unscored,
        "generation": its.generation,
        "spans": [place for chunk in its.chunks for place in (chunk.window.start, chunk.window.end)] or None,
    }


def _stored(row: Row) -> StoredObservation:
    spans: list[int] = row["spans"] or []
    windows = [Window(start, end) for start, end in zip(spans[::2], spans[1::2], strict=True)]
    vectors: list[FloatArray] = row["vectors"] or []
    return StoredObservation(
        observation=_observation(row),
        seq=row["seq"],
        occurred_given=row["occurred_given"],
        unscored=row["unscored"],
        generation=row["generation"],
        chunks=[Chunk(n, window, vector) for n, (window, vector) in enumerate(zip(windows, vectors, strict=True))],
    )


def _observation(row: Row) -> Observation:
    return Observation(**{name: row[name] for name in Observation.__struct_fields__})

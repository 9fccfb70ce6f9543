"""Erasures: who is being erased, how far that is, and the receipt. A row that is running is the tombstone."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from uuid_utils.compat import uuid7

from memplane_core.contracts.erasures import ErasureReceipt, ErasureState, SubjectKind
from memplane_core.domain.errors import Conflict
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.generations import hold_writes, join_writers
from memplane_core.storage.jobs import ERASE, ERASE_TENANT, end_job
from memplane_core.storage.session import Connection, Row
from memplane_core.storage.tenants import require_tenant

MOST_RUNNING: Final = 1_000
"""Most erasures of a tenant that run at once: every write of the tenant is held against each of them."""

_HOLD_S: Final = 2.0


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Who is erased: what is this user's and this agent's, where None is anybody's; at least one is given."""

    user_id: str | None = None
    agent_id: str | None = None

    @property
    def kind(self) -> SubjectKind:
        """What it is called in answers."""
        if self.user_id is not None and self.agent_id is not None:
            return "pair"
        return "agent" if self.user_id is None else "user"


class ErasureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure.

    Attributes:
        user_id: Null once it has ended, as is `agent_id`.
        subject: HMAC of them, in hex.
        phase: What it is at.
        pass_: How often it has begun to look through everything.
        unsettled: What the index was being told while it was erased: only after a deadline is nothing under way.
        counts: What is gone so far.
    """

    id: UUID
    kind: SubjectKind
    user_id: str | None
    agent_id: str | None
    subject: str
    state: ErasureState
    phase: str
    pass_: int
    unsettled: bool
    not_before: datetime
    counts: dict[str, int]
    error: str | None
    receipt: ErasureReceipt | None
    started_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def who(self) -> Subject:
        """Who is being erased, while it is running."""
        return Subject(user_id=self.user_id, agent_id=self.agent_id)


class Begun(msgspec.Struct, frozen=True):
    """An erasure that was asked for; `made` is False where one of the same subject was under way."""

    id: UUID
    made: bool


async def begin(tenant: TenantId, connection: Connection, who: Subject, *, subject: str, started_by: str) -> Begun:
    """Set up the tombstone: from the commit on no memory of `who` is written, and none is being written.

    Waits for transactions that write memories, 2 s at most.

    Args:
        tenant: Whose memories.
        connection: A transaction of the tenant, in which nothing has been locked.
        who: To erase.
        subject: HMAC of `who`.
        started_by: Public id of the key that asks for it.

    Raises:
        NotFound: The tenant is gone.
        Conflict: `MOST_RUNNING` of others are under way.
        Exception: One of which `session.is_contention` is true: writers were in the way.
    """
    await hold_writes(tenant, connection, wait_s=_HOLD_S)
    await require_tenant(tenant, connection)
    running = await connection.fetchval(
        """
        SELECT id FROM erasure WHERE tenant_id = $1 AND state = 'running' AND kind = $2
          AND user_id IS NOT DISTINCT FROM $3 AND agent_id IS NOT DISTINCT FROM $4
        """,
        tenant,
        who.kind,
        who.user_id,
        who.agent_id,
    )
    if running is not None:
        return Begun(UUID(int=running.int), made=False)
    if (await next_turn(tenant, connection)).running >= MOST_RUNNING:
        raise Conflict(f"{MOST_RUNNING:,} erasures are under way already: ask again when one has ended", retry_after=60)
    erasure_id = uuid7()
    await connection.execute(
        """
        INSERT INTO erasure (tenant_id, id, kind, user_id, agent_id, subject, started_by)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        """,
        tenant,
        erasure_id,
        who.kind,
        who.user_id,
        who.agent_id,
        subject,
        started_by,
    )
    await _see_to_job(tenant, connection, kind=ERASE, started_by=started_by)
    return Begun(erasure_id, made=True)


async def begin_tenant(tenant: TenantId, connection: Connection, *, subject: str, started_by: str) -> Begun:
    """Let the tenant be gone from the commit on: its keys, its name, its jobs; what it had is then removed.

    `connection` and errors as in `begin`. Where it is gone already, the erasure that is under way or done.
    """
    await hold_writes(tenant, connection, wait_s=_HOLD_S)
    known = await connection.fetchval("SELECT id FROM erasure WHERE tenant_id = $1 AND kind = 'tenant'", tenant)
    if known is not None:
        return Begun(UUID(int=known.int), made=False)
    erasure_id = uuid7()
    await connection.execute("UPDATE tenant SET deleted_at = clock_timestamp() WHERE id = $1", tenant)
    await connection.execute("DELETE FROM job WHERE tenant_id = $1", tenant)
    await connection.execute("DELETE FROM erasure WHERE tenant_id = $1", tenant)
    await connection.execute(
        "INSERT INTO erasure (tenant_id, id, kind, subject, started_by) VALUES ($1, $2, 'tenant', $3, $4)",
        tenant,
        erasure_id,
        subject,
        started_by,
    )
    await _see_to_job(tenant, connection, kind=ERASE_TENANT, started_by=started_by)
    return Begun(erasure_id, made=True)


async def _see_to_job(tenant: TenantId, connection: Connection, *, kind: str, started_by: str) -> None:
    """Queue the run that takes all erasures, or wake the one there is."""
    await connection.execute(
        """
        INSERT INTO job (tenant_id, id, kind, params, started_by) VALUES ($1, $2, $3, '{}', $4)
        ON CONFLICT (tenant_id, kind) WHERE state IN ('queued', 'running')
        DO UPDATE SET not_before = clock_timestamp()
        """,
        tenant,
        uuid7(),
        kind,
        started_by,
    )


async def get_erasure(tenant: TenantId, connection: Connection, erasure_id: UUID) -> ErasureRecord | None:
    """An erasure of a person by its id."""
    row = await connection.fetchrow(
        "SELECT * FROM erasure WHERE tenant_id = $1 AND id = $2 AND kind <> 'tenant'", tenant, erasure_id
    )
    return None if row is None else _record(row)


async def tenant_erasure(tenant: TenantId, connection: Connection) -> ErasureRecord | None:
    """The erasure of the tenant itself."""
    row = await connection.fetchrow("SELECT * FROM erasure WHERE tenant_id = $1 AND kind = 'tenant'", tenant)
    return None if row is None else _record(row)


async def due_in_s(tenant: TenantId, connection: Connection, erasure_id: UUID) -> float:
    """Seconds until somebody may go on with an erasure; 0 and less where it is time."""
    return float(
        await connection.fetchval(
            "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM erasure"
            " WHERE tenant_id = $1 AND id = $2",
            tenant,
            erasure_id,
        )
    )


async def list_erasures(
    tenant: TenantId,
    connection: Connection,
    *,
    before: UUID | None,
    limit: int,
    subjects: Sequence[str] | None = None,
) -> list[ErasureRecord]:
    """Erasures of persons, the newest first, from the one before `before`; of `subjects` alone where they are given."""
    rows = await connection.fetch(
        """
        SELECT * FROM erasure
        WHERE tenant_id = $1 AND kind <> 'tenant' AND ($2::uuid IS NULL OR id < $2)
          AND ($3::text[] IS NULL OR subject = ANY($3))
        ORDER BY id DESC LIMIT $4
        """,
        tenant,
        before,
        None if subjects is None else list(subjects),
        limit,
    )
    return [_record(row) for row in rows]


class Turn(msgspec.Struct, frozen=True):
    """Whose turn it is among a tenant's erasures of persons.

    Attributes:
        erasure: One that can go on; None where none can.
        wait_s: Seconds until one can, where none can now; None where none is running.
        running: How many are.
    """

    erasure: ErasureRecord | None
    wait_s: float | None
    running: int


async def next_turn(tenant: TenantId, connection: Connection) -> Turn:
    """The erasure that has waited longest."""
    row = await connection.fetchrow(
        """
        SELECT count(*) AS running,
            extract(epoch FROM min(not_before) - clock_timestamp())::float8 AS wait_s,
            (SELECT id FROM erasure WHERE tenant_id = $1 AND state = 'running' AND kind <> 'tenant'
                AND not_before <= clock_timestamp() ORDER BY not_before, id LIMIT 1) AS due
        FROM erasure WHERE tenant_id = $1 AND state = 'running' AND kind <> 'tenant'
        """,
        tenant,
    )
    assert row is not None
    erasure = None if row["due"] is None else await get_erasure(tenant, connection, UUID(int=row["due"].int))
    return Turn(erasure, None if row["wait_s"] is None else max(0.0, row["wait_s"]), row["running"])


async def end_run(tenant: TenantId, connection: Connection, job_id: UUID, *, epoch: int) -> bool:
    """End the run that takes erasures, unless one was asked for meanwhile: whoever asks waits for this transaction."""
    await join_writers(tenant, connection)
    if (await next_turn(tenant, connection)).running:
        return False
    return await end_job(tenant, connection, job_id, epoch=epoch, state="done", result={})


async def save_erasure(
    tenant: TenantId,
    connection: Connection,
    erasure: ErasureRecord,
    *,
    phase: str,
    pass_: int | None = None,
    counts: Mapping[str, int] | None = None,
    unsettled: bool | None = None,
    wait_s: float = 0.0,
    settle_s: float = 0.0,
    error: str | None = None,
) -> None:
    """Write down how far it is, and what has gone since.

    Nobody goes on with it for `wait_s`, nor before it was asked for `settle_s` ago.
    """
    total = dict(erasure.counts)
    for name, count in (counts or {}).items():
        total[name] = total.get(name, 0) + count
    await connection.execute(
        """
        UPDATE erasure SET phase = $3, pass = $4, counts = $5, unsettled = unsettled OR $6, error = $7,
            started_at = coalesce(started_at, clock_timestamp()),
            not_before = greatest(
                clock_timestamp() + make_interval(secs => $8), created_at + make_interval(secs => $9))
        WHERE tenant_id = $1 AND id = $2 AND state = 'running'
        """,
        tenant,
        erasure.id,
        phase,
        erasure.pass_ if pass_ is None else pass_,
        total,
        bool(unsettled),
        error,
        wait_s,
        settle_s,
    )


async def finish_erasure(
    tenant: TenantId, connection: Connection, erasure: ErasureRecord, *, remains: Mapping[str, str]
) -> None:
    """End it with a receipt: from the commit on its subject can be written about anew, and is nowhere in the clear.

    Which memories are gone is known for a day: until then nothing is written that was made from one.
    """
    row = await connection.fetchrow(
        """
        UPDATE erasure SET state = 'done', phase = '', user_id = NULL, agent_id = NULL, error = NULL,
            started_at = coalesce(started_at, clock_timestamp()), finished_at = clock_timestamp()
        WHERE tenant_id = $1 AND id = $2 AND state = 'running'
        RETURNING *
        """,
        tenant,
        erasure.id,
    )
    if row is None:
        return
    ended = _record(row)
    assert ended.started_at is not None
    assert ended.finished_at is not None
    receipt = ErasureReceipt(
        erasure_id=ended.id,
        tenant_id=tenant,
        kind=ended.kind,
        subject=f"hmac-sha256:{ended.subject}",
        erased=dict(sorted(ended.counts.items())),
        passes=ended.pass_,
        requested_at=ended.created_at,
        started_at=ended.started_at,
        finished_at=ended.finished_at,
        remains=dict(remains),
    )
    await connection.execute(
        "UPDATE erasure SET receipt = $3 WHERE tenant_id = $1 AND id = $2",
        tenant,
        erasure.id,
        msgspec.to_builtins(receipt),
    )


async def fail_running(tenant: TenantId, connection: Connection, *, error: str) -> None:
    """Give up all that are running: writes about their subjects are taken again, and something of them is left."""
    await connection.execute(
        """
        UPDATE erasure SET state = 'failed', user_id = NULL, agent_id = NULL, error = $2,
            finished_at = clock_timestamp()
        WHERE tenant_id = $1 AND state = 'running' AND kind <> 'tenant'
        """,
        tenant,
        error,
    )


async def give_up_tenant(tenant: TenantId, connection: Connection) -> None:
    """Let the tenant, which stays gone, be erased anew by whoever asks for it next."""
    await connection.execute(
        "DELETE FROM erasure WHERE tenant_id = $1 AND kind = 'tenant' AND state = 'running'", tenant
    )


def receipt_digest(receipt: ErasureReceipt) -> str:
    """Hex SHA-256 of a receipt: of its JSON in UTF-8 with sorted keys and no spaces."""
    return hashlib.sha256(msgspec.json.encode(msgspec.to_builtins(receipt), order="sorted")).hexdigest()


def _record(row: Row) -> ErasureRecord:
    fields: dict[str, Any] = {
        name: row["pass" if name == "pass_" else name] for name in ErasureRecord.__struct_fields__
    }
    receipt = row["receipt"]
    fields["id"] = UUID(int=row["id"].int)
    fields["receipt"] = None if receipt is None else msgspec.convert(receipt, ErasureReceipt)
    return ErasureRecord(**fields)

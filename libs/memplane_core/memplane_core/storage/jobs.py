"""Jobs of a tenant: what was asked for, how far it is, and who works on it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from uuid_utils.compat import uuid7

from memplane_core.domain.errors import Conflict
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Row

JobState = Literal["queued", "running", "done", "failed", "cancelled"]
Ending = Literal["done", "failed", "cancelled"]

LONGEST_PAUSE_S: Final = 60.0
"""Most that a job waits before it is tried again."""


SAMPLE: Final = 20
"""Most ids that a run keeps of what it touched."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job.

    Attributes:
        kind: What it does; one run of a kind at a time.
        params: As its kind takes them.
        cancel_asked: It is to end before its next batch.
        checkpoint: How far its work has come, for its kind alone.
        done: Of `total`, in what its kind counts.
        total: None until it is known.
        result: What it did, in numbers, by name.
        sample: Ids of some of the memories that it touched, at most `SAMPLE`.
        error: Why it failed, or what holds it up just now.
        attempts: Tries in vain since it last got on.
        epoch: Of the lease under which it was last taken.
        started_by: Public id of a key, or `admin`.
    """

    id: UUID
    kind: str
    params: dict[str, Any]
    dry_run: bool
    state: JobState
    cancel_asked: bool
    checkpoint: dict[str, Any]
    done: int
    total: int | None
    result: dict[str, int]
    sample: list[UUID]
    error: str | None
    attempts: int
    epoch: int
    started_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is after a step.

    Attributes:
        sample: Ids of some of the memories that it has touched so far; None leaves those that are known.
        pause_s: For how long nobody is to look at it.
        held_up_by: What is in its way, where something is: the step is tried again, later each time.
    """

    checkpoint: Mapping[str, Any]
    done: int
    total: int | None
    result: Mapping[str, int]
    sample: Sequence[UUID] | None = None
    pause_s: float = 0.0
    held_up_by: str | None = None


class DueJob(msgspec.Struct, frozen=True):
    """A job that nobody works on and that could go on now."""

    tenant: TenantId
    id: UUID


_COLUMNS: Final = ", ".join(JobRecord.__struct_fields__)
_LIVING: Final = "state IN ('queued', 'running')"

ERASE: Final = "erase"
"""The kind of job that erases persons: one run takes all of a tenant's, in turn."""

ERASE_TENANT: Final = "erase_tenant"
"""The kind of job that erases a tenant; the schema knows its name too."""


async def create_job(
    tenant: TenantId, connection: Connection, *, kind: str, params: Mapping[str, Any], dry_run: bool, started_by: str
) -> JobRecord:
    """Queue a run. Raises Conflict where one of that kind has not ended; its id is `extra["id"]`."""
    row = await connection.fetchrow(
        f"""
        INSERT INTO job (tenant_id, id, kind, params, dry_run, started_by) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (tenant_id, kind) WHERE {_LIVING} DO NOTHING
        RETURNING {_COLUMNS}
        """,
        tenant,
        uuid7(),
        kind,
        dict(params),
        dry_run,
        started_by,
    )
    if row is not None:
        return _record(row)
    other = await connection.fetchval(
        f"SELECT id FROM job WHERE tenant_id = $1 AND kind = $2 AND {_LIVING}", tenant, kind
    )
    raise Conflict(f"a {kind} of this tenant is under way: wait for it, or cancel it", id=other)


async def get_job(tenant: TenantId, connection: Connection, job_id: UUID) -> JobRecord | None:
    """A run by its id."""
    row = await connection.fetchrow(f"SELECT {_COLUMNS} FROM job WHERE tenant_id = $1 AND id = $2", tenant, job_id)
    return None if row is None else _record(row)


async def list_jobs(
    tenant: TenantId, connection: Connection, *, before: UUID | None, limit: int, kind: str | None = None
) -> list[JobRecord]:
    """Runs, the newest first, from the one before `before`."""
    rows = await connection.fetch(
        f"""
        SELECT {_COLUMNS} FROM job
        WHERE tenant_id = $1 AND ($2::uuid IS NULL OR id < $2) AND ($3::text IS NULL OR kind = $3)
        ORDER BY id DESC LIMIT $4
        """,
        tenant,
        before,
        kind,
        limit,
    )
    return [_record(row) for row in rows]


async def ask_cancel(tenant: TenantId, connection: Connection, job_id: UUID) -> JobRecord | None:
    """Ask a run to end before its next batch; one that nobody has taken yet ends at once. None where there is none.

    Raises:
        Conflict: It is done or has failed, or it erases somebody. One that is cancelled stays so.
    """
    row = await connection.fetchrow(
        f"""
        UPDATE job SET cancel_asked = true, not_before = clock_timestamp(),
            state = CASE WHEN epoch = 0 THEN 'cancelled' ELSE state END,
            finished_at = CASE WHEN epoch = 0 THEN clock_timestamp() END
        WHERE tenant_id = $1 AND id = $2 AND {_LIVING} AND kind NOT IN ('{ERASE}', '{ERASE_TENANT}')
        RETURNING {_COLUMNS}
        """,
        tenant,
        job_id,
    )
    if row is not None:
        return _record(row)
    found = await get_job(tenant, connection, job_id)
    if found is not None and found.kind == ERASE and found.state in ("queued", "running"):
        raise Conflict("an erasure cannot be cancelled")
    if found is not None and found.state != "cancelled":
        raise Conflict(f"the job has ended: it is {found.state}")
    return found


async def claim_job(tenant: TenantId, connection: Connection, job_id: UUID, *, epoch: int) -> JobRecord | None:
    """Take a run under a lease's epoch: from now on whoever had it before can change nothing of it.

    None where it has ended, or is not to be looked at yet.
    """
    row = await connection.fetchrow(
        f"""
        UPDATE job SET state = 'running', started_at = coalesce(started_at, clock_timestamp()), epoch = $3
        WHERE tenant_id = $1 AND id = $2 AND {_LIVING} AND epoch < $3 AND not_before <= clock_timestamp()
        RETURNING {_COLUMNS}
        """,
        tenant,
        job_id,
        epoch,
    )
    return None if row is None else _record(row)


async def hold_job(tenant: TenantId, connection: Connection, job_id: UUID, *, epoch: int) -> JobRecord | None:
    """The run as it is, locked until the transaction ends; None where it is no longer this epoch's.

    Where its work and its row change in one transaction, neither happens without the other.
    """
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM job WHERE tenant_id = $1 AND id = $2 AND epoch = $3 AND {_LIVING} FOR UPDATE",
        tenant,
        job_id,
        epoch,
    )
    return None if row is None else _record(row)


async def save_job(
    tenant: TenantId, connection: Connection, job_id: UUID, *, epoch: int, advance: Advance
) -> JobRecord | None:
    """Write down how far it is; None where it is no longer this epoch's.

    What is held up is looked at again after `pause_s`, or after 1, 2, 4, ... seconds, at most `LONGEST_PAUSE_S`.
    """
    row = await connection.fetchrow(
        f"""
        UPDATE job SET checkpoint = $4, done = $5, total = $6, result = $7, error = $8, sample = coalesce($10, sample),
            attempts = CASE WHEN $8::text IS NULL THEN 0 ELSE attempts + 1 END,
            not_before = clock_timestamp() + make_interval(secs => greatest($9::float8,
                CASE WHEN $8::text IS NULL THEN 0 ELSE least({LONGEST_PAUSE_S}, power(2, least(attempts, 16))) END))
        WHERE tenant_id = $1 AND id = $2 AND epoch = $3 AND {_LIVING}
        RETURNING {_COLUMNS}
        """,
        tenant,
        job_id,
        epoch,
        dict(advance.checkpoint),
        advance.done,
        advance.total,
        dict(advance.result),
        advance.held_up_by,
        advance.pause_s,
        advance.sample,
    )
    return None if row is None else _record(row)


async def end_job(
    tenant: TenantId,
    connection: Connection,
    job_id: UUID,
    *,
    epoch: int,
    state: Ending,
    result: Mapping[str, int],
    sample: Sequence[UUID] | None = None,
    error: str | None = None,
) -> bool:
    """End it, and forget how far it was. False where it is no longer this epoch's, or has ended."""
    ended = await connection.fetchval(
        f"""
        UPDATE job SET state = $4, result = $5, error = $6, sample = coalesce($7, sample), checkpoint = '{{}}',
            finished_at = clock_timestamp(),
            done = CASE WHEN $4 = 'done' THEN coalesce(total, done) ELSE done END
        WHERE tenant_id = $1 AND id = $2 AND epoch = $3 AND {_LIVING}
        RETURNING true
        """,
        tenant,
        job_id,
        epoch,
        state,
        dict(result),
        error,
        sample,
    )
    return bool(ended)


async def forget_old_runs(tenant: TenantId, connection: Connection, *, kind: str, started_by: str, keep: int) -> None:
    """Delete all runs of a kind that somebody started and that have ended, but for the latest few."""
    await connection.execute(
        f"""
        DELETE FROM job WHERE tenant_id = $1 AND id IN (
            SELECT id FROM job WHERE tenant_id = $1 AND kind = $2 AND started_by = $3 AND NOT {_LIVING}
            ORDER BY id DESC OFFSET $4)
        """,
        tenant,
        kind,
        started_by,
        keep,
    )


async def jobs_due(connection: Connection, *, limit: int) -> list[DueJob]:
    """Jobs of all tenants that could go on and that nobody works on, the longest waiting first; outside any tenant."""
    rows = await connection.fetch("SELECT tenant_id, id FROM jobs_due($1)", limit)
    return [DueJob(TenantId(row["tenant_id"]), row["id"]) for row in rows]


def _record(row: Row) -> JobRecord:
    return JobRecord(**{name: row[name] for name in JobRecord.__struct_fields__})

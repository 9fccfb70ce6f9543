"""A tenant's generations: which collection, made with which model, answers its searches, and how long each lives."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from memplane_core.domain.errors import NotFound
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Row

Life = Literal["building", "kept", "dropping", "dropped"]

_SELECT: Final = """
    SELECT g.number, g.model, g.dim, g.index_type, g.index_params, g.state
    FROM generation g JOIN tenant t ON t.id = g.tenant_id
    WHERE g.tenant_id = $1 AND t.deleted_at IS NULL
"""

FED: Final = "life IN ('building', 'kept')"
"""SQL condition of a generation that every write is queued for."""


class GenerationLife(msgspec.Struct, frozen=True, kw_only=True):
    """A generation and how it stands.

    Attributes:
        active: It answers searches.
        life: `building` until it may be active, `kept` while it is or can be again, then `dropping`, then `dropped`.
        drop_at: When it will be dropped, if it is not active by then.
        shares_vectors: Of another generation that is fed: what one has embedded, the other takes over.
    """

    generation: Generation
    active: bool
    life: Life
    drop_at: datetime | None
    created_at: datetime
    shares_vectors: bool


class NewGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation is to be made of.

    Attributes:
        reembed: Take over no vectors, even of the same model.
    """

    model: str
    dim: int
    index_type: str
    index_params: Mapping[str, int]
    reembed: bool = False


async def active_generation(tenant: TenantId, connection: Connection) -> Generation:
    """The generation that answers searches now. Raises NotFound where the tenant is gone."""
    row = await connection.fetchrow(f"{_SELECT} AND g.number = t.active_generation", tenant)
    if row is None:
        raise NotFound("this tenant does not exist any more")
    return _generation(tenant, row)


async def fed_generations(tenant: TenantId, connection: Connection) -> list[GenerationLife]:
    """The tenant's generations that have to be told of every change; the active one first, then the oldest."""
    lives = await generation_lives(tenant, connection)
    return sorted((life for life in lives if life.life in ("building", "kept")), key=lambda life: not life.active)


async def generation_lives(tenant: TenantId, connection: Connection) -> list[GenerationLife]:
    """All generations that the tenant ever had, the oldest first; none where the tenant is gone."""
    rows = await connection.fetch(
        f"""
        SELECT g.number, g.model, g.dim, g.index_type, g.index_params, g.state, g.life, g.drop_at, g.created_at,
            g.number = t.active_generation AS active,
            EXISTS (SELECT 1 FROM generation o WHERE o.tenant_id = $1 AND o.number <> g.number AND o.{FED}
                AND coalesce(o.vectors_of, o.number) = coalesce(g.vectors_of, g.number)) AS shares_vectors
        FROM generation g JOIN tenant t ON t.id = g.tenant_id
        WHERE g.tenant_id = $1 AND t.deleted_at IS NULL ORDER BY g.number
        """,
        tenant,
    )
    return [
        GenerationLife(
            generation=_generation(tenant, row),
            active=row["active"],
            life=row["life"],
            drop_at=row["drop_at"],
            created_at=row["created_at"],
            shares_vectors=row["shares_vectors"],
        )
        for row in rows
    ]


async def mark_ready(tenant: TenantId, connection: Connection, generation: Generation) -> None:
    """Record that the generation's collection has been made, so that searches may ask it."""
    await connection.execute(
        "UPDATE generation SET state = 'ready' WHERE tenant_id = $1 AND number = $2 AND state = 'absent'",
        tenant,
        generation.number,
    )


_WRITERS: Final = "hashtextextended($1::uuid::text, 0)"
"""Key of the advisory lock between a tenant's writers and whoever changes its generations, as in `fed_generations`."""


async def hold_writes(tenant: TenantId, connection: Connection, *, wait_s: float) -> None:
    """Wait until no transaction that writes memories is under way, and let none begin until this one ends.

    Such a transaction holds the other side of this lock from before it reads which generations there are
    (`fed_generations` in the schema) until it commits. So between the two the set of generations, and which of them is
    active, are the same for all writers. Searches and the drain do not wait.

    Args:
        tenant: Whose writes.
        connection: A transaction of the tenant.
        wait_s: How long to wait, here and for any lock until the transaction ends.

    Raises:
        Exception: One of which `session.is_contention` is true, after `wait_s`.
    """
    await connection.fetchval("SELECT set_config('lock_timeout', $1, true)", str(int(wait_s * 1000)))
    await connection.execute(f"SELECT pg_advisory_xact_lock({_WRITERS})", tenant)


async def join_writers(tenant: TenantId, connection: Connection) -> None:
    """Keep the set of generations, and which of them is active, as it is until the transaction ends.

    For those whose statements do not call `fed_generations` of the schema. See `hold_writes`, which waits for them.
    """
    await connection.execute(f"SELECT pg_advisory_xact_lock_shared({_WRITERS})", tenant)


async def is_fed(tenant: TenantId, connection: Connection, *, generation: int) -> bool:
    """Whether rows may be queued for a generation: it stays fed until the transaction ends.

    Takes the lock that writers take (`hold_writes`): what is queued for one that is being dropped would be
    left behind.
    """
    await join_writers(tenant, connection)
    found = await connection.fetchval(
        f"SELECT EXISTS (SELECT FROM generation WHERE tenant_id = $1 AND number = $2 AND {FED})", tenant, generation
    )
    return bool(found)


async def add_generation(tenant: TenantId, connection: Connection, new: NewGeneration, *, made_by: UUID) -> Generation:
    """Begin a generation, or return the one that the same job began before. Call under `hold_writes`.

    It takes over the active one's vectors where the model is the same.
    """
    row = await connection.fetchrow(
        f"""
        WITH made AS (
            INSERT INTO generation (
                tenant_id, number, model, dim, index_type, index_params, life, made_by, vectors_of)
            SELECT $1, (SELECT max(number) + 1 FROM generation WHERE tenant_id = $1), $2, $3, $4, $5, 'building', $6,
                (SELECT coalesce(a.vectors_of, a.number)
                 FROM generation a JOIN tenant t ON t.id = a.tenant_id AND t.active_generation = a.number
                 WHERE a.tenant_id = $1 AND a.model = $2 AND a.dim = $3 AND NOT $7)
            WHERE NOT EXISTS (SELECT 1 FROM generation WHERE tenant_id = $1 AND made_by = $6)
            RETURNING {_COLUMNS}
        )
        SELECT {_COLUMNS} FROM made
        UNION ALL
        SELECT {_COLUMNS} FROM generation WHERE tenant_id = $1 AND made_by = $6
        """,
        tenant,
        new.model,
        new.dim,
        new.index_type,
        dict(new.index_params),
        made_by,
        new.reembed,
    )
    assert row is not None
    return _generation(tenant, row)


async def activate(tenant: TenantId, connection: Connection, number: int, *, grace_s: float) -> bool:
    """Let a generation answer searches from the commit on; the one before is kept for `grace_s`. See `hold_writes`.

    False where it is none that can.
    """
    changed = await connection.fetchval(
        f"""
        WITH chosen AS (
            UPDATE generation SET life = 'kept', drop_at = NULL WHERE tenant_id = $1 AND number = $2 AND {FED}
            RETURNING number
        ), before AS (
            UPDATE generation g SET drop_at = clock_timestamp() + make_interval(secs => $3)
            FROM tenant t, chosen WHERE t.id = $1 AND g.tenant_id = $1 AND g.number = t.active_generation
              AND g.number <> chosen.number
        )
        UPDATE tenant SET active_generation = chosen.number FROM chosen WHERE id = $1
        RETURNING true
        """,
        tenant,
        number,
        grace_s,
    )
    return bool(changed)


async def keep(tenant: TenantId, connection: Connection, number: int, *, for_s: float | None) -> bool:
    """Drop a kept generation that is not active after `for_s`, or never with None. False where it is none such."""
    changed = await connection.fetchval(
        """
        UPDATE generation g SET drop_at = clock_timestamp() + make_interval(secs => $3)
        FROM tenant t WHERE t.id = $1 AND g.tenant_id = $1 AND g.number = $2 AND g.life = 'kept'
          AND g.number <> t.active_generation
        RETURNING true
        """,
        tenant,
        number,
        for_s,
    )
    return bool(changed)


async def give_up(tenant: TenantId, connection: Connection, *, made_by: UUID) -> None:
    """Stop the generation that a job is building, if it has begun one: it is dropped. Call under `hold_writes`."""
    await connection.execute(
        "UPDATE generation SET life = 'dropping' WHERE tenant_id = $1 AND made_by = $2 AND life = 'building'",
        tenant,
        made_by,
    )


async def retire_overdue(tenant: TenantId, connection: Connection) -> list[Generation]:
    """Stop what is kept beyond its time, and return all that is to be dropped. Call under `hold_writes`."""
    await connection.execute(
        """
        UPDATE generation g SET life = 'dropping' FROM tenant t
        WHERE t.id = $1 AND g.tenant_id = $1 AND g.life = 'kept' AND g.drop_at <= clock_timestamp()
          AND g.number <> t.active_generation
        """,
        tenant,
    )
    rows = await connection.fetch(
        f"SELECT {_COLUMNS} FROM generation WHERE tenant_id = $1 AND life = 'dropping' ORDER BY number", tenant
    )
    return [_generation(tenant, row) for row in rows]


async def mark_dropped(tenant: TenantId, connection: Connection, number: int) -> None:
    """Record that nothing is left of a generation but its number."""
    await connection.execute(
        "UPDATE generation SET life = 'dropped' WHERE tenant_id = $1 AND number = $2 AND life = 'dropping'",
        tenant,
        number,
    )


async def tenants_to_retire(connection: Connection, *, limit: int) -> list[TenantId]:
    """Tenants that have a generation to drop. `connection` has no tenant."""
    rows = await connection.fetch("SELECT tenants_to_retire($1) AS id", limit)
    return [TenantId(row["id"]) for row in rows]


_COLUMNS: Final = "number, model, dim, index_type, index_params, state"


def _generation(tenant: TenantId, row: Row) -> Generation:
    return Generation(
        tenant=tenant,
        number=row["number"],
        model=row["model"],
        dim=row["dim"],
        index_type=row["index_type"],
        index_params=row["index_params"],
        state=row["state"],
    )

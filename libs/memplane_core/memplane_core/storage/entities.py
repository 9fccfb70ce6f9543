"""Users, agents and sessions, counted where their memories are."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from memplane_core.contracts.entities import Entity, EntityType
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.memories import ALIVE
from memplane_core.storage.session import Connection

_COLUMNS: Final[Mapping[EntityType, str]] = {"user": "user_id", "agent": "agent_id", "session": "session_id"}


async def entity_page(
    tenant: TenantId,
    connection: Connection,
    type_: EntityType,
    *,
    after: str | None,
    limit: int,
    bind: Mapping[str, str],
) -> Sequence[Entity]:
    """Entities that active, living memories name, in the order of ids, from the one after `after` on.

    Args:
        tenant: Whose memories are counted.
        connection: Inside a transaction of the tenant.
        type_: What is counted.
        after: Id of the last that is known; None begins with the first.
        limit: Most entities.
        bind: Fields and their values that a memory must have to be counted (`Principal.bind`).
    """
    column = _COLUMNS[type_]
    values: list[Any] = [tenant, limit, after]
    bounds = ""
    for name, value in bind.items():
        assert name in _COLUMNS.values()
        values.append(value)
        bounds += f" AND m.{name} = ${len(values)}"
    rows = await connection.fetch(
        f"""
        SELECT m.{column} AS id, count(*) AS memories, max(m.updated_at) AS last FROM memory m
        WHERE m.tenant_id = $1 AND m.state = 'active' AND {ALIVE} AND m.{column} IS NOT NULL
          AND ($3::text IS NULL OR m.{column} > $3){bounds}
        GROUP BY m.{column} ORDER BY m.{column} LIMIT $2
        """,
        *values,
    )
    return [Entity(type=type_, id=row["id"], memories=row["memories"], last_activity_at=row["last"]) for row in rows]

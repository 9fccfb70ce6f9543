"""Pages of memories in a chosen order, each continuing exactly where the one before ended."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from memplane_core.contracts.lists import Sort, SortKey
from memplane_core.domain.filters import Filter
from memplane_core.domain.memory import Memory, State
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.validity import ValidAt
from memplane_core.storage.filter_sql import conditions, fetch_matching, needs_usage
from memplane_core.storage.memories import ALIVE, COLUMNS, SOURCE, holding, memory_of
from memplane_core.storage.session import Connection

_COLUMNS: Final[Mapping[SortKey, tuple[str, str]]] = {
    "created_at": ("m.created_at", "timestamptz"),
    "updated_at": ("m.updated_at", "timestamptz"),
    "occurred_at": ("m.occurred_at", "timestamptz"),
    "importance": ("m.importance", "float8"),
    "last_accessed_at": ("u.last_accessed_at", "timestamptz"),
    "priority": ("u.priority", "float8"),
    "access_count": ("u.access_count", "float8"),
}


class Order(msgspec.Struct, frozen=True):
    """What a list is sorted by; what is equal there comes in the same direction of its ids."""

    key: SortKey
    descending: bool

    @classmethod
    def of(cls, sort: Sort) -> "Order":
        """The order that a request names."""
        return cls(cast("SortKey", sort.removeprefix("-")), sort.startswith("-"))

    @property
    def is_time(self) -> bool:
        """Whether it is a moment, or else a number."""
        return self.key.endswith("_at")

    def place_of(self, memory: Memory) -> "Place":
        """Where a memory stands in this order."""
        return Place(getattr(memory, self.key), memory.id)


class Place(msgspec.Struct, frozen=True):
    """A memory's place in an order."""

    value: datetime | float
    id: UUID


async def list_page(
    tenant: TenantId,
    connection: Connection,
    *,
    where: Filter,
    order: Order,
    after: Place | None,
    limit: int,
    state: State = "active",
    valid_at: ValidAt = "any",
) -> list[Memory]:
    """The next `limit` living memories in `state` that `where` matches and that hold, from the first or `after` on.

    Raises:
        Unavailable: The metadata of too many memories would have to be read.
    """
    values: list[Any] = [tenant, limit, state]
    matching = conditions(where, values)
    matching += holding(valid_at, values)
    column, type_ = _COLUMNS[order.key]
    if after is not None:
        values += [after.value, after.id]
        sign = "<" if order.descending else ">"
        matching += f" AND ({column}, m.id) {sign} (${len(values) - 1}::{type_}, ${len(values)}::uuid)"
    usage = ""
    if needs_usage(where) or column.startswith("u."):
        usage = "JOIN memory_usage u ON u.tenant_id = $1 AND u.memory_id = m.id"
    direction = "DESC" if order.descending else "ASC"
    # The ids for both tables: from the join alone the planner takes to reading the whole of the tenant's usage.
    rows = await fetch_matching(
        tenant,
        connection,
        f"""
        WITH page AS MATERIALIZED (
            SELECT m.id FROM memory m {usage}
            WHERE m.tenant_id = $1 AND m.state = $3 AND {ALIVE}{matching}
            ORDER BY {column} {direction}, m.id {direction} LIMIT $2
        )
        SELECT {COLUMNS} FROM {SOURCE}
        WHERE m.tenant_id = $1 AND m.id = ANY(ARRAY(SELECT id FROM page))
          AND u.memory_id = ANY(ARRAY(SELECT id FROM page))
        ORDER BY {column} {direction}, m.id {direction}
        """,
        where=where,
        values=values[1:],
    )
    return [memory_of(row) for row in rows]

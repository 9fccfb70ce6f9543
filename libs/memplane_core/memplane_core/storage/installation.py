"""The whole installation in numbers, through functions that cross tenants. Every `connection` here has no tenant."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from memplane_core.contracts.limits import EffectiveLimits
from memplane_core.contracts.system import ExpiringKey, GenerationsView, JobsView, TenantLag
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection

_MOST = 100_000
"""Outbox rows that are looked at."""


class TenantNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant has and may have; a limit of None is none.

    Attributes:
        stored: Active memories, and observations that sessions hold.
        tokens: Of new texts and queries since midnight UTC.
    """

    tenant: TenantId
    stored: int
    stored_limit: int | None
    tokens: int
    tokens_limit: int | None


async def index_lag(connection: Connection, *, page: int) -> list[TenantLag]:
    """The tenants whose index is behind, the furthest first, of the first 100,000 rows that wait."""
    rows = await connection.fetch("SELECT tenant_id, pending, oldest_s FROM index_lag($1, $2)", _MOST, page)
    return [
        TenantLag(
            tenant_id=UUID(int=row["tenant_id"].int), pending=row["pending"], oldest_s=max(round(row["oldest_s"], 3), 0)
        )
        for row in rows
    ]


async def generation_states(connection: Connection) -> GenerationsView:
    """How many generations there are, by what they are for."""
    rows = await connection.fetch("SELECT state, generations FROM generation_states()")
    return GenerationsView(**{row["state"]: row["generations"] for row in rows})


async def job_states(connection: Connection) -> list[JobsView]:
    """Jobs that have not ended, by kind and state."""
    rows = await connection.fetch("SELECT kind, state, runs, held_up, waits_s FROM job_states()")
    return [
        JobsView(
            kind=row["kind"],
            state=row["state"],
            runs=row["runs"],
            held_up=row["held_up"],
            waits_s=round(row["waits_s"], 3),
        )
        for row in rows
    ]


async def tenants_to_watch(connection: Connection, *, page: int, defaults: EffectiveLimits) -> Sequence[TenantNumbers]:
    """The `page` tenants with the most memories, with the most tokens today, and nearest to a quota; each once.

    Args:
        connection: Without a tenant.
        page: How many of each.
        defaults: Limits of tenants that have none of their own.
    """
    rows = await connection.fetch(
        "SELECT tenant_id, stored, stored_limit, tokens, tokens_limit FROM tenants_to_watch($1, $2, $3)",
        page,
        defaults.stored_memories,
        defaults.tokens_a_day,
    )
    return [
        TenantNumbers(
            tenant=TenantId(UUID(int=row["tenant_id"].int)),
            stored=row["stored"],
            stored_limit=row["stored_limit"],
            tokens=row["tokens"],
            tokens_limit=row["tokens_limit"],
        )
        for row in rows
    ]


async def keys_expiring(connection: Connection, *, within: timedelta, page: int) -> list[ExpiringKey]:
    """API keys that end within that time and that nothing has replaced, the next first."""
    rows = await connection.fetch("SELECT tenant_id, id, expires_at FROM keys_expiring($1, $2)", within, page)
    return [
        ExpiringKey(tenant_id=UUID(int=row["tenant_id"].int), id=row["id"], expires_at=row["expires_at"])
        for row in rows
    ]

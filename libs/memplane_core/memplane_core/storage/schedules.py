"""When a tenant's jobs were last begun, for whoever begins those that nobody asks for."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from memplane_core.contracts.policy import Policy
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a tenant's jobs stand.

    Attributes:
        policy: The tenant's.
        now: By the database's clock.
        under_way: Kinds of which a run has not ended.
        held_up: Those of them whose run waits for what is in its way.
        idle_s: By kind, seconds since a run that was no dry run was asked for, by whomever; of a kind that never was,
            since the tenant was made.
    """

    policy: Policy
    now: datetime
    under_way: frozenset[str]
    held_up: frozenset[str]
    idle_s: dict[str, float]


async def standing_of(tenant: TenantId, connection: Connection, *, kinds: Sequence[str]) -> Standing | None:
    """How the runs of these kinds stand; None where the tenant is gone."""
    rows = await connection.fetch(
        """
        SELECT k.kind, t.policy, clock_timestamp() AS now, coalesce(j.living, false) AS living,
            j.living AND j.held_up AS held_up,
            extract(epoch FROM clock_timestamp() - coalesce(j.last, t.created_at))::float8 AS idle_s
        FROM tenant t CROSS JOIN unnest($2::text[]) AS k(kind)
        LEFT JOIN LATERAL (
            SELECT max(created_at) FILTER (WHERE NOT dry_run) AS last,
                bool_or(state IN ('queued', 'running')) AS living,
                bool_and(error IS NOT NULL) FILTER (WHERE state IN ('queued', 'running')) AS held_up
            FROM job WHERE tenant_id = $1 AND kind = k.kind
        ) j ON true
        WHERE t.id = $1 AND t.deleted_at IS NULL
        """,
        tenant,
        kinds,
    )
    if not rows:
        return None
    return Standing(
        policy=msgspec.convert(rows[0]["policy"], Policy),
        now=rows[0]["now"],
        under_way=frozenset(row["kind"] for row in rows if row["living"]),
        held_up=frozenset(row["kind"] for row in rows if row["held_up"]),
        idle_s={row["kind"]: row["idle_s"] for row in rows},
    )

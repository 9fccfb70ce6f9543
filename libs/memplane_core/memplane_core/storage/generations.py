"""A tenant's generations: which collection, made with which model, answers its searches."""

from memplane_core.domain.errors import NotFound
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection, Row

_SELECT = """
    SELECT g.number, g.model, g.dim, g.index_type, g.index_params, g.state
    FROM generation g JOIN tenant t ON t.id = g.tenant_id
    WHERE g.tenant_id = $1 AND t.deleted_at IS NULL
"""


async def active_generation(tenant: TenantId, connection: Connection) -> Generation:
    """The generation that answers searches now. Raises NotFound where the tenant is gone."""
    row = await connection.fetchrow(f"{_SELECT} AND g.number = t.active_generation", tenant)
    if row is None:
        raise NotFound("this tenant does not exist any more")
    return _generation(tenant, row)


async def all_generations(tenant: TenantId, connection: Connection) -> list[Generation]:
    """The tenant's generations, each of which has to be fed; oldest first."""
    return [_generation(tenant, row) for row in await connection.fetch(f"{_SELECT} ORDER BY g.number", tenant)]


async def mark_ready(tenant: TenantId, connection: Connection, generation: Generation) -> None:
    """Record that the generation's collection has been made, so that searches may ask it."""
    await connection.execute(
        "UPDATE generation SET state = 'ready' WHERE tenant_id = $1 AND number = $2 AND state = 'absent'",
        tenant,
        generation.number,
    )


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

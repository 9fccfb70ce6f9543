"""A tenant's generations: which collection, made with which model, answers its searches."""

from memplane_core.domain.errors import NotFound
from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Connection

_COLUMNS = "g.number, g.model, g.dim, g.index_type, g.index_params, g.state"


async def active_generation(tenant: TenantId, connection: Connection) -> Generation:
    """The generation that answers searches now. Raises NotFound where the tenant is gone."""
    row = await connection.fetchrow(
        f"""
        SELECT {_COLUMNS} FROM tenant t
        JOIN generation g ON g.tenant_id = t.id AND g.number = t.active_generation
        WHERE t.id = $1 AND t.deleted_at IS NULL
        """,
        tenant,
    )
    if row is None:
        raise NotFound("this tenant does not exist any more")
    return Generation(
        tenant=tenant,
        number=row["number"],
        model=row["model"],
        dim=row["dim"],
        index_type=row["index_type"],
        index_params=row["index_params"],
        state=row["state"],
    )

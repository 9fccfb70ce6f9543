"""Tenants made by SQL, for tests that need no gateway."""

from uuid import uuid4

import uuid_utils.compat

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database


async def make_tenant(database: Database, *, model: str = "hash", dim: int = 64) -> TenantId:
    """A tenant with one generation whose collection has not been made."""
    tenant = TenantId(uuid_utils.compat.uuid7())
    async with database.tenant(tenant) as connection:
        await connection.execute("INSERT INTO tenant (id, name) VALUES ($1, $2)", tenant, f"tenant {uuid4().hex}")
        await connection.execute(
            """
            INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params)
            VALUES ($1, 1, $2, $3, 'HNSW', $4)
            """,
            tenant,
            model,
            dim,
            {"M": 16, "efConstruction": 200},
        )
    return tenant

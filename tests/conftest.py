"""Real parts that many tests share: one Postgres a worker process, migrated once; a tenant of its own for each test."""

from collections.abc import AsyncGenerator, Generator
from uuid import uuid4

import pytest
import uuid_utils.compat

from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.migrate import upgrade
from memplane_core.storage.session import Database
from memplane_core.testing.postgres import PostgresServer


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def database_name(postgres: PostgresServer) -> str:
    """A migrated database; tests keep apart by their tenants."""
    name = postgres.create_database()
    upgrade(postgres.owner_url(name), "memplane_app")
    return name


@pytest.fixture(scope="session")
def postgres_settings(postgres: PostgresServer, database_name: str) -> PostgresSettings:
    return PostgresSettings.model_validate({"url": postgres.app_url(database_name)})


@pytest.fixture
async def database(postgres_settings: PostgresSettings) -> AsyncGenerator[Database]:
    async with Database.open(postgres_settings) as opened:
        yield opened


async def make_tenant(database: Database, *, model: str = "hash", dim: int = 64) -> TenantId:
    """A tenant with one generation whose collection has not been made."""
    tenant = TenantId(uuid_utils.compat.uuid7())
    async with database.tenant(tenant) as connection:
        await connection.execute("INSERT INTO tenant (id, name) VALUES ($1, $2)", tenant, f"tenant {uuid4().hex}")
        await connection.execute(
            "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params) VALUES"
            " ($1, 1, $2, $3, 'HNSW', '{\"M\": 16, \"efConstruction\": 200}'::jsonb)",
            tenant,
            model,
            dim,
        )
    return tenant


@pytest.fixture
async def tenant(database: Database) -> TenantId:
    return await make_tenant(database)

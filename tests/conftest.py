"""Real parts that many tests share: one Postgres a worker process, migrated once; a tenant of its own for each test."""

from collections.abc import AsyncGenerator, Generator

import pytest
from hypothesis import HealthCheck, settings

from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.migrate import upgrade
from memplane_core.storage.session import Database
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.tenants import make_tenant

# The same examples each time, however busy the machine is: what is found is found where it was made.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


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


@pytest.fixture
async def tenant(database: Database) -> TenantId:
    return await make_tenant(database)

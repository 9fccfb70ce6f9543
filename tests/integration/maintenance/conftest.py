"""A tenant's memories in a real Postgres, and a drain of them into an index in memory."""

from collections.abc import Generator

import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.valkey import ValkeyServer


@pytest.fixture
def embedder() -> HashEmbedder:
    return HashEmbedder(window=200)


@pytest.fixture
def desk(database: Database, tenant: TenantId, embedder: HashEmbedder) -> MemoryDesk:
    return MemoryDesk(database, tenant, embedder)


@pytest.fixture(scope="module")
def valkey() -> Generator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server

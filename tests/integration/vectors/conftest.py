"""Milvus Lite and a real Milvus server, each started once a worker process; every test makes its own collections."""

from collections.abc import AsyncGenerator, Generator
from uuid import uuid4

import pytest

from memplane_core.domain.index import Generation
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import MilvusSettings
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.vectors import MilvusIndex


@pytest.fixture(scope="session", params=["lite", "server"])
def milvus(request: pytest.FixtureRequest) -> Generator[MilvusLite | MilvusServer]:
    with MilvusLite() if request.param == "lite" else MilvusServer() as server:
        yield server


@pytest.fixture
async def index(milvus: MilvusLite | MilvusServer) -> AsyncGenerator[MilvusIndex]:
    index = MilvusIndex(MilvusSettings(uri=milvus.uri))
    yield index
    await index.close()


@pytest.fixture
def generation() -> Generation:
    """Of a new tenant, with short vectors."""
    return Generation(
        tenant=TenantId(uuid4()),
        number=1,
        model="test",
        dim=8,
        index_type="HNSW",
        index_params={"M": 16, "efConstruction": 200},
        state="absent",
    )

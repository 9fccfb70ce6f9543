"""Built models, and an embedding service as a process with a Valkey beside it."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import default_models_dir
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.valkey import ValkeyServer
from memplane_embedding.models.build import build_models

SECRET = "a secret of thirty-two bytes or more"
MINILM = "all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """All bundled models; built here where `make setup` has not done so."""
    folder = default_models_dir()
    build_models([], folder, lock=Path("models/requirements.txt"), report=lambda _: None)
    return folder


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def service_env(models_dir: Path, **settings: str) -> dict[str, str]:
    return {
        "MEMPLANE_TRUST__INTERNAL_SECRET": SECRET,
        "MEMPLANE_MODELS_DIR": str(models_dir),
        "MEMPLANE_EMBEDDING__DEFAULT_MODEL": MINILM,
        "MEMPLANE_EMBEDDING__MAX_TEXTS": "300",
        **settings,
    }


@pytest.fixture(scope="session")
def service(models_dir: Path, valkey: ValkeyServer) -> Iterator[ServiceProcess]:
    env = service_env(
        models_dir, MEMPLANE_REDIS__BROKER_URL=valkey.url_of(0), MEMPLANE_REDIS__CACHE_URL=valkey.url_of(1)
    )
    with ServiceProcess("memplane_embedding", env=env) as process:
        yield process


@pytest.fixture
def tenant() -> TenantId:
    return TenantId(uuid4())

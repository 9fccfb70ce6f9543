"""All services as real processes over real stores, for tests that break them one by one."""

import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import httpx2
import msgspec

from memplane_core.domain.tenancy import SCOPES
from memplane_core.storage.migrate import upgrade
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.milvus_server import MilvusServer
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.valkey import ValkeyServer


class StackTenant(msgspec.Struct, frozen=True):
    """A tenant and a key of it that may do everything."""

    id: str
    key: str


class Stack:
    """Real stores, one embedding service, one worker, one beat; `doors` gateways, each with a retrieval of its own.

    Everything is gone when the `with` ends.

    Args:
        milvus: Lite, or a real server: started and stopped here.
        doors: How many gateways and retrieval processes.
        model: Default embedding model.
        env: Settings for all services.
        durable: Whether Postgres waits for the disk, as it does for users. Tests do without.

    Attributes:
        env: What the first gateway was given, which has the settings of every other service among its own.
        admin_key: Of the installation.
    """

    def __init__(
        self,
        milvus: MilvusLite | MilvusServer,
        *,
        doors: int = 1,
        model: str = "all-MiniLM-L6-v2",
        env: Mapping[str, str] | None = None,
        durable: bool = False,
    ) -> None:
        self.milvus = milvus
        self.env: dict[str, str] = {}
        self.postgres = PostgresServer(durable=durable)
        self.valkey = ValkeyServer(durable=True)
        self._doors = doors
        self._model = model
        self._extra = dict(env or {})
        self.admin_key = secrets.token_urlsafe(24)
        self._exit = ExitStack()
        self.retrievals: list[ServiceProcess] = []
        self.gateways: list[ServiceProcess] = []
        self.embedding: ServiceProcess
        self.worker: ServiceProcess
        self.beat: ServiceProcess

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._start(opening)
            self._exit = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit.close()

    def _start(self, opening: ExitStack) -> None:
        opening.enter_context(self.postgres)
        opening.enter_context(self.valkey)
        opening.enter_context(self.milvus)
        database = self.postgres.create_database()
        upgrade(self.postgres.owner_url(database), "memplane_app")
        shared = {
            "MEMPLANE_POSTGRES__URL": self.postgres.app_url(database),
            "MEMPLANE_REDIS__BROKER_URL": self.valkey.url,
            "MEMPLANE_REDIS__CACHE_URL": self.valkey.url,
            "MEMPLANE_MILVUS__URI": self.milvus.uri,
            "MEMPLANE_TRUST__INTERNAL_SECRET": secrets.token_urlsafe(32),
            **self._extra,
        }
        self.embedding = opening.enter_context(
            ServiceProcess("memplane_embedding", env=shared | {"MEMPLANE_EMBEDDING__DEFAULT_MODEL": self._model})
        )
        shared["MEMPLANE_ENDPOINTS__EMBEDDING_URL"] = self.embedding.url
        self.worker = opening.enter_context(ServiceProcess("memplane_maintenance", "worker", env=shared))
        self.beat = opening.enter_context(ServiceProcess("memplane_maintenance", "beat", env=shared))
        for _ in range(self._doors):
            retrieval = opening.enter_context(ServiceProcess("memplane_retrieval", env=shared))
            door = {
                "MEMPLANE_GATEWAY__KEY_PEPPER": "pepper of the tests, long enough",
                "MEMPLANE_GATEWAY__ADMIN_KEY": self.admin_key,
                "MEMPLANE_ENDPOINTS__RETRIEVAL_URL": retrieval.url,
            }
            self.env = self.env or shared | door
            self.retrievals.append(retrieval)
            self.gateways.append(opening.enter_context(ServiceProcess("memplane_gateway", env=shared | door)))

    def make_tenant(self, name: str) -> StackTenant:
        """A new tenant, made through the admin routes."""
        with self.admin() as admin:
            tenant = admin.post("/admin/v1/tenants", json={"name": name}).raise_for_status().json()["id"]
            key = admin.post(f"/admin/v1/tenants/{tenant}/keys", json={"name": "test", "scopes": sorted(SCOPES)})
        return StackTenant(tenant, key.raise_for_status().json()["key"])

    def admin(self) -> httpx2.Client:
        """A client with the admin key; close it."""
        return httpx2.Client(
            base_url=self.gateways[0].url, headers={"Authorization": f"Bearer {self.admin_key}"}, timeout=30
        )

    def client(self, tenant: StackTenant, *, door: int = 0) -> httpx2.Client:
        """A client of the tenant at one of the gateways; close it."""
        return httpx2.Client(
            base_url=self.gateways[door].url, headers={"Authorization": f"Bearer {tenant.key}"}, timeout=60
        )

    def logs(self, *, lines: int = 15) -> str:
        """The end of what each service has said, for a test that failed."""
        services = [self.embedding, self.worker, self.beat, *self.retrievals, *self.gateways]
        return "\n\n".join("\n".join(service.log().splitlines()[-lines:]) for service in services)

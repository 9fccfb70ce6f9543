"""A gateway and a retrieval service as processes over a real Postgres; nothing embeds and there is no index."""

import json
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any
from uuid import UUID

import httpx2
import msgspec
import pytest

from memplane_core.contracts.export import (
    HeaderLine,
    HistoryLine,
    Line,
    MemoryLine,
    ObservationLine,
    PolicyLine,
    TrailerLine,
)
from memplane_core.domain.tenancy import SCOPES, Scope, TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.session import Database
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.tenants import make_tenant
from memplane_core.testing.valkey import ValkeyServer

NOWHERE = "http://127.0.0.1:1"
ADMIN_KEY = "admin key of the tests, which is long enough"


class Door:
    """The gateway's process, and the service behind it."""

    def __init__(self, gateway: ServiceProcess, retrieval: ServiceProcess) -> None:
        self.gateway = gateway
        self.retrieval = retrieval

    @property
    def admin(self) -> httpx2.AsyncClient:
        """A client with the admin key; close it."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        return httpx2.AsyncClient(base_url=self.gateway.url, headers=headers, timeout=30, trust_env=False)

    async def client(
        self, tenant: TenantId, *, scopes: Sequence[Scope] = sorted(SCOPES), bind: dict[str, str] | None = None
    ) -> httpx2.AsyncClient:
        """A client with a new key of the tenant; close it."""
        body: dict[str, Any] = {"name": "test", "scopes": scopes} | ({"bind": bind} if bind else {})
        async with self.admin as admin:
            made = (await admin.post(f"/admin/v1/tenants/{tenant}/keys", json=body)).raise_for_status().json()
        headers = {"Authorization": f"Bearer {made['key']}"}
        return httpx2.AsyncClient(base_url=self.gateway.url, headers=headers, timeout=60, trust_env=False)


class Exported:
    """An export that has been read."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.raw = body.splitlines(keepends=True)
        self.lines: list[Line] = [msgspec.json.decode(line, type=Line) for line in self.raw]  # pyright: ignore

    @property
    def header(self) -> HeaderLine:
        assert isinstance(self.lines[0], HeaderLine)
        return self.lines[0]

    @property
    def trailer(self) -> TrailerLine:
        assert isinstance(self.lines[-1], TrailerLine)
        return self.lines[-1]

    @property
    def policies(self) -> list[PolicyLine]:
        return [line for line in self.lines if isinstance(line, PolicyLine)]

    @property
    def memories(self) -> list[MemoryLine]:
        return [line for line in self.lines if isinstance(line, MemoryLine)]

    @property
    def ids(self) -> list[UUID]:
        return [memory.id for memory in self.memories]

    @property
    def observations(self) -> list[ObservationLine]:
        return [line for line in self.lines if isinstance(line, ObservationLine)]

    @property
    def history(self) -> list[HistoryLine]:
        return [line for line in self.lines if isinstance(line, HistoryLine)]

    @property
    def records(self) -> list[bytes]:
        """The lines of observations, memories and history as they came."""
        kinds = (ObservationLine, MemoryLine, HistoryLine)
        return [raw for raw, line in zip(self.raw, self.lines, strict=True) if isinstance(line, kinds)]


async def export(client: httpx2.AsyncClient, **query: Any) -> Exported:
    """A whole export."""
    answer = await client.get("/v1/export", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return Exported(answer.content)


async def fill(client: httpx2.AsyncClient, count: int, *, text: str = "memory", **fields: Any) -> list[UUID]:
    """Write so many memories, and return their ids in order."""
    ids: list[UUID] = []
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        body = {"memories": [{"content": f"{text} number {n}", **fields} for n in numbers]}
        answer = await client.post("/v1/memories/batch", json=body)
        assert answer.status_code == 200, answer.text
        ids += [UUID(item["id"]) for item in answer.json()["results"]]
    return sorted(ids)


def as_line(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


@pytest.fixture(scope="session")
def door(postgres_settings: PostgresSettings) -> Generator[Door]:
    with ValkeyServer() as valkey:
        env = {
            "MEMPLANE_POSTGRES__URL": postgres_settings.url.get_secret_value(),
            "MEMPLANE_REDIS__BROKER_URL": valkey.url,
            "MEMPLANE_REDIS__CACHE_URL": valkey.url,
            "MEMPLANE_MILVUS__URI": NOWHERE,
            "MEMPLANE_TRUST__INTERNAL_SECRET": "internal secret of the tests, long enough",
            "MEMPLANE_ENDPOINTS__EMBEDDING_URL": NOWHERE,
            "MEMPLANE_GATEWAY__KEY_PEPPER": "pepper of the tests, which is long enough",
            "MEMPLANE_GATEWAY__ADMIN_KEY": ADMIN_KEY,
            "MEMPLANE_GATEWAY__KEY_CACHE_S": "1",
        }
        with ServiceProcess("memplane_retrieval", env=env) as retrieval:
            env["MEMPLANE_ENDPOINTS__RETRIEVAL_URL"] = retrieval.url
            with ServiceProcess("memplane_gateway", env=env) as gateway:
                yield Door(gateway, retrieval)


@pytest.fixture
async def client(door: Door, tenant: TenantId) -> AsyncGenerator[httpx2.AsyncClient]:
    """Of a tenant without memories."""
    async with await door.client(tenant) as opened:
        yield opened


@pytest.fixture
async def other(door: Door, database: Database) -> AsyncGenerator[httpx2.AsyncClient]:
    """Of another tenant, without memories too."""
    async with await door.client(await make_tenant(database)) as opened:
        yield opened

"""An installation that all contract tests share: gateway, retrieval and embedding as processes over real stores.

No worker runs unless a test starts one: nothing changes but by the requests of a test, so that it can tell whether a
refused one left a trace.
"""

import asyncio
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final, cast
from uuid import UUID

import httpx2
import msgspec
import pytest
from tests.contract.described import Document, Json, Operation, Request, Things

from memplane_core.domain.tenancy import SCOPES
from memplane_core.storage import bootstrap
from memplane_core.storage.migrate import upgrade
from memplane_core.testing.milvus_lite import MilvusLite
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.valkey import ValkeyServer

PEPPER: Final = "pepper of the tests, which is long enough"
ADMIN_KEY: Final = "admin key of the tests, which is long enough"
OPS_KEY: Final = "ops key of the tests, which is long enough too"

_TRACES: Final = """
    SELECT string_agg(format($q$SELECT %L AS "table", count(*) AS rows, coalesce(sum(hashtextextended(
        (to_jsonb(t) - 'last_used_at')::text, 0)::numeric), 0)::text AS content FROM %I t WHERE %s$q$, relname, relname,
        CASE WHEN $1 = '' THEN 'true' ELSE format('tenant_id = %L', $1) END), ' UNION ALL ')
    FROM pg_class c
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
      AND relname <> 'usage_day'
      AND ($1 = '' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND attname = 'tenant_id'))
"""


class Tenant(msgspec.Struct, frozen=True):
    """A tenant and a key of it that may do everything."""

    id: str
    name: str
    key: str
    key_id: str


class Installation:
    """Its doors and its database.

    Attributes:
        env: Settings that all services have.
        base: A client without a key.
        services: What runs.
    """

    def __init__(self, postgres: PostgresServer, running: ExitStack) -> None:
        self._postgres = postgres
        self.database = postgres.create_database()
        upgrade(postgres.owner_url(self.database), "memplane_app")
        valkey = running.enter_context(ValkeyServer())
        milvus = running.enter_context(MilvusLite())
        self.env = {
            "MEMPLANE_POSTGRES__URL": postgres.app_url(self.database),
            "MEMPLANE_REDIS__BROKER_URL": valkey.url,
            "MEMPLANE_REDIS__CACHE_URL": valkey.url,
            "MEMPLANE_MILVUS__URI": milvus.uri,
            "MEMPLANE_TRUST__INTERNAL_SECRET": "internal secret of the tests, long enough",
            "MEMPLANE_WRITE__WAIT_INDEX_S": "0.2",  # nobody indexes
        }
        embedding = running.enter_context(ServiceProcess("memplane_embedding", env=self.env))
        self.env["MEMPLANE_ENDPOINTS__EMBEDDING_URL"] = embedding.url
        retrieval = running.enter_context(ServiceProcess("memplane_retrieval", env=self.env))
        door = {
            "MEMPLANE_ENDPOINTS__RETRIEVAL_URL": retrieval.url,
            "MEMPLANE_GATEWAY__KEY_PEPPER": PEPPER,
            "MEMPLANE_GATEWAY__ADMIN_KEY": ADMIN_KEY,
            "MEMPLANE_GATEWAY__OPS_KEY": OPS_KEY,
            "MEMPLANE_GATEWAY__KEY_CACHE_S": "0",  # what is revoked is refused by the next request
        }
        gateway = running.enter_context(ServiceProcess("memplane_gateway", env=self.env | door))
        self.services = [embedding, retrieval, gateway]
        self.url = gateway.url
        self.base = running.enter_context(httpx2.Client(base_url=gateway.url, timeout=60, trust_env=False))

    @cached_property
    def document(self) -> Document:
        """The OpenAPI document as it is served."""
        return Document(cast("Json", self.base.get("/openapi.json").raise_for_status().json()))

    def admin(self, method: str, path: str, **given: Any) -> httpx2.Response:
        """The answer to a request with the admin key."""
        return self.base.request(method, path, headers=bearer(ADMIN_KEY), **given)

    def make_tenant(self) -> Tenant:
        """A new tenant."""
        name = f"tenant {secrets.token_hex(6)}"
        tenant: str = self.admin("POST", "/admin/v1/tenants", json={"name": name}).raise_for_status().json()["id"]
        made = self.make_key(tenant, *sorted(SCOPES))
        return Tenant(tenant, name, made["key"], made["id"])

    def make_key(self, tenant: str, *scopes: str, **wanted: Any) -> Json:
        """A new key of a tenant as the admin route answers."""
        body = {"name": "test", "scopes": scopes, **wanted}
        return cast("Json", self.admin("POST", f"/admin/v1/tenants/{tenant}/keys", json=body).raise_for_status().json())

    def revoke(self, tenant: str, key_id: str) -> None:
        """Make a key invalid."""
        self.admin("DELETE", f"/admin/v1/tenants/{tenant}/keys/{key_id}").raise_for_status()

    def send(self, request: Request, key: str | None) -> httpx2.Response:
        """The answer to a request with a key, or without."""
        return self.base.request(
            request.method,
            request.path,
            params=dict(request.query),
            headers={**request.headers, **({} if key is None else bearer(key))},
            content=request.content,
        )

    def things(self, tenant: Tenant) -> Things:
        """What the tenant has, made as it is asked for."""

        def send(operation: Operation, request: Request) -> Json:
            answer = self.send(request, ADMIN_KEY if operation.admin else tenant.key)
            assert answer.is_success, f"{operation}: {answer.status_code} {answer.text}"
            return cast("Json", answer.json())

        return Things(self.document, send, known={"tenant_id": tenant.id}, others=self._others(tenant))

    def _others(self, tenant: Tenant) -> Mapping[str, Callable[[], str]]:
        """How to make what no POST and no example is.

        By the name of a parameter in a path, of an operation and a parameter of it, or by the type of a body.
        """

        def kept_generation() -> str:
            self.value(
                "WITH kept AS (INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params, state,"
                " life, drop_at) SELECT tenant_id, 2, model, dim, index_type, index_params, 'ready', 'kept',"
                " clock_timestamp() + interval '1 day' FROM generation WHERE tenant_id = $1 RETURNING 1)"
                " SELECT count(*) FROM kept",
                UUID(tenant.id),
            )
            return "2"

        def export() -> str:
            return self.base.get("/v1/export", headers=bearer(tenant.key)).raise_for_status().text

        return {
            "number": kept_generation,
            "application/x-ndjson": export,
            "deleteTenant name": lambda: tenant.name,
        }

    def traces(self, tenant: str = "") -> Mapping[str, tuple[int, str]]:
        """How many rows each table has, and a number that changes with them; of one tenant where it is named.

        When keys were last used does not count, nor do days of usage: both are told late.
        """
        statement = self.value(_TRACES, tenant)
        found = self.value(f"SELECT json_agg(t) FROM ({statement}) t")
        rows = msgspec.json.decode(cast("str", found))
        return {row["table"]: (row["rows"], row["content"]) for row in rows}

    def value(self, statement: str, *arguments: object) -> Any:
        """The first value that a statement returns to a superuser."""

        async def ask() -> object:
            connection = await bootstrap.connect(self._postgres.superuser_url(self.database))
            try:
                return await connection.fetchval(statement, *arguments)
            finally:
                await connection.close()

        return asyncio.run(ask())

    def logs(self, *, lines: int = 30) -> str:
        """The end of what each service has said."""
        return "\n\n".join("\n".join(service.log().splitlines()[-lines:]) for service in self.services)


def bearer(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {key}".strip()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the services said when a test fails."""
    report = yield
    found = getattr(item, "funcargs", {}).get("installation")
    if report.failed and isinstance(found, Installation):
        report.sections.append(("services", found.logs()))
    return report


@pytest.fixture(scope="session")
def installation(postgres: PostgresServer) -> Generator[Installation]:
    with ExitStack() as running:
        yield Installation(postgres, running)

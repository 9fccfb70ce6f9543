"""The wall inside Postgres, read from its catalogue: what the role of the services can reach, table by table."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import asyncpg
import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage import bootstrap
from memplane_core.storage.session import Connection, Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

# What runs with the rights of the owner, past the policies of tenants. Each has one narrow question, and a review.
DEFINERS = {
    "add_usage": "counts requests of many tenants in one call",
    "find_api_key": "whose a key is, before there is a tenant",
    "generation_states": "how many generations there are, by what they are for",
    "index_lag": "which tenants the index is furthest behind for",
    "job_states": "how many jobs wait and run, by kind",
    "jobs_due": "which tenants have jobs to run",
    "keys_expiring": "ids of keys that soon expire, for the operator",
    "list_audit": "the operator's audit",
    "list_tenants": "the operator's list",
    "mark_keys_used": "when keys of many tenants were last used",
    "nominate_by_words": "ids of the transaction's own tenant, by an index that policies keep from being used",
    "outbox_backlog": "how much waits, for metrics",
    "tenants_to_retire": "which tenants have generations to drop",
    "tenants_to_watch": "how much the largest tenants hold, and those near a quota",
    "tenants_with_work": "which tenants have something to tell the index",
    "trim_finished": "removes outbox rows that are done",
}
NO_TENANTS = {"alembic_version"}
TABLES = (
    "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace"
    " AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition ORDER BY 1"
)


@pytest.fixture
async def superuser(postgres: PostgresServer, database_name: str) -> AsyncGenerator[Connection]:
    connection = await cast("Any", asyncpg).connect(postgres.superuser_url(database_name))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def service_role(postgres_settings: PostgresSettings) -> AsyncGenerator[Connection]:
    """A plain connection as the services have it, with no tenant set."""
    connection = await cast("Any", asyncpg).connect(postgres_settings.url.get_secret_value())
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def inhabited(database: Database) -> TenantId:
    """A tenant that has something in every table that a write fills."""
    tenant = await make_tenant(database)
    desk = MemoryDesk(database, tenant, HashEmbedder())
    await desk.write("The harbour lies to the north.", user_id="ana", scene=["places"])
    return tenant


async def tables_of(superuser: Connection) -> list[str]:
    found = [str(row["relname"]) for row in await superuser.fetch(TABLES)]
    assert len(found) >= 15
    return [name for name in found if name not in NO_TENANTS]


class TestTheRoleOfTheServices:
    async def test_sees_nothing_while_no_tenant_is_set(
        self, superuser: Connection, service_role: Connection, inhabited: TenantId
    ) -> None:
        filled: set[str] = set()
        for table in await tables_of(superuser):
            assert await service_role.fetchval(f"SELECT count(*) FROM {table}") == 0, table
            if await superuser.fetchval(f"SELECT count(*) FROM {table}"):
                filled.add(table)
        assert filled >= {"tenant", "generation", "memory", "memory_usage", "memory_scene", "memory_words", "chunk"}
        assert filled >= {"history", "outbox"}
        assert await superuser.fetchval("SELECT count(*) FROM memory WHERE tenant_id = $1", inhabited) == 1

    async def test_changes_nothing_while_no_tenant_is_set(
        self, superuser: Connection, service_role: Connection, inhabited: TenantId
    ) -> None:
        for table in await tables_of(superuser):
            for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET tenant_id = tenant_id"):
                try:
                    assert (await service_role.execute(statement)).split()[-1] == "0", statement
                except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedColumnError):
                    continue
        assert await superuser.fetchval("SELECT count(*) FROM memory WHERE tenant_id = $1", inhabited) == 1

    async def test_sees_only_the_tenant_that_is_set_and_cannot_write_for_another(
        self, superuser: Connection, service_role: Connection, inhabited: TenantId, tenant: TenantId
    ) -> None:
        await service_role.execute("SELECT set_config('memplane.tenant', $1, false)", str(tenant))
        for table in await tables_of(superuser):
            column = "id" if table == "tenant" else "tenant_id"
            assert await service_role.fetchval(f"SELECT count(*) FROM {table} WHERE {column} <> $1", tenant) == 0, table
        assert await service_role.fetchval("SELECT count(*) FROM memory") == 0
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await service_role.execute("INSERT INTO lease (tenant_id, name) VALUES ($1, 'x')", inhabited)

    async def test_is_no_superuser_owns_nothing_and_cannot_become_the_owner(self, superuser: Connection) -> None:
        app, owner = bootstrap.APP_ROLE, bootstrap.OWNER_ROLE
        role = await superuser.fetchrow("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = $1", app)
        assert role is not None
        assert (role["rolsuper"], role["rolbypassrls"]) == (False, False)
        assert await superuser.fetchval("SELECT count(*) FROM pg_class WHERE relowner = $1::text::regrole", app) == 0
        assert await superuser.fetchval("SELECT count(*) FROM pg_proc WHERE proowner = $1::text::regrole", app) == 0
        assert await superuser.fetchval("SELECT pg_has_role($1, $2, 'MEMBER')", app, owner) is False


class TestTables:
    async def test_all_force_their_policies_on_everybody(self, superuser: Connection) -> None:
        for table in await tables_of(superuser):
            row = await superuser.fetchrow(
                "SELECT relkind::text AS kind, relrowsecurity AND relforcerowsecurity AS forced,"
                " (SELECT count(*) FROM pg_policy WHERE polrelid = c.oid) AS policies"
                " FROM pg_class c WHERE oid = $1::text::regclass",
                table,
            )
            assert row is not None
            assert row["kind"] in ("r", "p"), f"{table} is a view: policies of its tables would ask for its owner"
            assert row["forced"], f"{table} needs ENABLE and FORCE ROW LEVEL SECURITY"
            assert row["policies"] > 0, f"{table} needs a policy"

    async def test_whoever_has_rows_of_tenants_says_whose(self, superuser: Connection) -> None:
        for table in await tables_of(superuser):
            named = await superuser.fetchval(
                "SELECT attnotnull FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = 'tenant_id'",
                table,
            )
            nobodys = {"tenant": None, "audit": False}  # it is one; and some deeds are about no tenant
            assert named is nobodys.get(table, True), table

    async def test_partitions_cannot_be_read_around_them(
        self, superuser: Connection, service_role: Connection, inhabited: TenantId
    ) -> None:
        partitions = await superuser.fetch(
            "SELECT relname, has_table_privilege($1, oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') AS reached"
            " FROM pg_class WHERE relispartition AND relkind = 'r'",
            bootstrap.APP_ROLE,
        )
        assert len(partitions) >= 64
        assert [row["relname"] for row in partitions if row["reached"]] == []
        of_memory = await superuser.fetchval(
            "SELECT tableoid::regclass::text FROM memory WHERE tenant_id = $1", inhabited
        )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await service_role.fetch(f"SELECT * FROM {of_memory}")


class TestFunctionsWithTheOwnersRights:
    async def test_are_the_known_ones_each_with_a_search_path_of_its_own(self, superuser: Connection) -> None:
        found = await superuser.fetch(
            "SELECT proname, coalesce(proconfig, '{}') AS config, proowner::regrole::text AS owner,"
            " has_function_privilege('public', oid, 'EXECUTE') AS anybody"
            " FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
        )
        assert {row["proname"] for row in found} == DEFINERS.keys()
        for row in found:
            assert "search_path=public, pg_temp" in row["config"], row["proname"]
            assert row["owner"] == bootstrap.OWNER_ROLE, row["proname"]
            assert not row["anybody"], row["proname"]

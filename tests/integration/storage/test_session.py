"""A transaction that ends in a way nobody asked for: what the caller hears, and that the connection is sound after."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from memplane_core.domain.errors import Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage import bootstrap
from memplane_core.storage.session import Database
from memplane_core.testing.postgres import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def narrow(postgres_settings: PostgresSettings) -> AsyncGenerator[Database]:
    """One connection, so that the next transaction gets what the last one left; and statements of a second at most."""
    settings = postgres_settings.model_copy(update={"pool_max": 1, "statement_timeout_s": 1.0})
    async with Database.open(settings) as database:
        yield database


async def _rename(database: Database, tenant: TenantId, name: str, *, then: str = "SELECT 1") -> None:
    async with database.tenant(tenant) as connection:
        await connection.execute("UPDATE tenant SET name = $2 WHERE id = $1", tenant, name)
        await connection.fetch(then)


async def _name(database: Database, tenant: TenantId) -> str:
    async with database.tenant(tenant) as connection:
        return await connection.fetchval("SELECT name FROM tenant WHERE id = $1", tenant)


class TestEndings:
    async def test_a_statement_that_takes_too_long_is_503_and_undone(self, narrow: Database, tenant: TenantId) -> None:
        with pytest.raises(Unavailable):
            await _rename(narrow, tenant, f"slow {tenant}", then="SELECT pg_sleep(20)")
        assert await _name(narrow, tenant) != f"slow {tenant}"

    async def test_cancelled_at_any_moment_leaves_nothing_behind(self, narrow: Database, tenant: TenantId) -> None:
        for moment in range(30):
            work = asyncio.create_task(_rename(narrow, tenant, f"cut {moment}", then="SELECT pg_sleep(0.005)"))
            await asyncio.sleep(moment / 3000)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            async with narrow.system() as connection:  # the same connection, and no write is open in it
                assert await connection.fetchval("SELECT current_setting('memplane.tenant', true)") in ("", None)
                assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned() IS NULL")

    async def test_a_connection_that_the_server_ends_is_503_and_replaced(
        self, narrow: Database, tenant: TenantId, postgres: PostgresServer, database_name: str
    ) -> None:
        superuser = await bootstrap.connect(postgres.superuser_url(database_name))

        async def end_it(*, waiting: bool) -> None:
            async with narrow.tenant(tenant) as connection:
                pid = await connection.fetchval("SELECT pg_backend_pid()")
                ended = asyncio.create_task(superuser.execute("SELECT pg_terminate_backend($1)", pid))
                if not waiting:
                    await ended
                await asyncio.gather(ended, connection.fetch("SELECT pg_sleep(1)"))

        try:
            for waiting in (True, False):  # for an answer, and between two statements
                with pytest.raises(Unavailable):
                    await end_it(waiting=waiting)
                await self._answers(narrow)
        finally:
            await superuser.close()

    @staticmethod
    async def _answers(database: Database) -> None:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(Unavailable):
                    return await database.ping()
                await asyncio.sleep(0.02)

"""What a full quota refuses, what makes room again, and that the count is never wrong."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from memplane_core.contracts.limits import EffectiveLimits
from memplane_core.domain.errors import MemplaneError, QuotaExceeded
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import PostgresSettings
from memplane_core.storage.limits import StoredCount, recount_memories, stored_count
from memplane_core.storage.migrate import upgrade
from memplane_core.storage.session import Database, is_contention
from memplane_core.storage.token_quota import TokenQuota
from memplane_core.storage.usage_days import UsageMeter, add_tokens, tokens_today
from memplane_core.testing.postgres import PostgresServer
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

_INSERT = """
INSERT INTO memory (tenant_id, id, content, scene, memory_type, importance, pinned, metadata, occurred_at,
                    occurred_given)
SELECT $1, gen_random_uuid(), 'x', '{}', 'experience', .5, false, '{}', now(), false FROM generate_series(1, $2)
"""

_DELETE_ONE = "DELETE FROM memory WHERE tenant_id = $1 AND id = (SELECT id FROM memory LIMIT 1)"


async def limit(database: Database, tenant: TenantId, **limits: Any) -> None:
    async with database.tenant(tenant) as connection:
        await connection.execute("UPDATE tenant SET limits = $2 WHERE id = $1", tenant, limits)


async def run(database: Database, tenant: TenantId, statement: str, *args: object) -> None:
    async with database.tenant(tenant) as connection:
        await connection.execute(statement, tenant, *args)


async def counted(database: Database, tenant: TenantId) -> int:
    """The count, which must be right."""
    async with database.tenant(tenant) as connection:
        recount = await recount_memories(tenant, connection, mend=False)
        assert recount.stored == recount.counted == await stored_count(tenant, connection)
    return recount.stored.total


async def post(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    return await client.post("/v1/memories", json=body)


class TestStoredMemories:
    async def test_a_full_quota_is_a_403_that_names_it(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await limit(database, tenant, stored_memories=2)
        assert [(await post(client, content=text)).status_code for text in "ab"] == [201, 201]
        full = await post(client, content="c")
        assert full.status_code == 403
        assert "Retry-After" not in full.headers
        problem = full.json()
        assert {name: problem[name] for name in ("code", "quota", "limit", "used")} == {
            "code": "quota_exceeded", "quota": "stored_memories", "limit": 2, "used": 2,
        }  # fmt: skip

    async def test_a_repeat_needs_no_room_and_a_batch_that_has_too_little_stores_nothing(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await limit(database, tenant, stored_memories=2)
        await post(client, content="a")
        batch = await client.post("/v1/memories/batch", json={"memories": [{"content": text} for text in "abc"]})
        assert (batch.status_code, batch.json()["used"]) == (403, 1)
        assert await counted(database, tenant) == 1
        batch = await client.post("/v1/memories/batch", json={"memories": [{"content": text} for text in "aba"]})
        assert [item["status"] for item in batch.json()["results"]] == [200, 201, 200]
        assert (await post(client, content="b")).status_code == 200

    async def test_what_is_deleted_or_hidden_makes_room_and_what_comes_back_takes_it(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await limit(database, tenant, stored_memories=1)
        first = (await post(client, content="a", external_id="e")).json()["id"]
        await run(database, tenant, "UPDATE memory SET state = 'forgotten' WHERE tenant_id = $1")
        assert await counted(database, tenant) == 0
        second = (await post(client, content="b")).json()["id"]
        assert (await post(client, content="a", external_id="e")).status_code == 403
        assert (await client.delete(f"/v1/memories/{second}")).status_code == 204
        revived = await post(client, content="a", external_id="e")
        assert (revived.status_code, revived.json()["id"]) == (200, first)
        assert await counted(database, tenant) == 1
        await run(database, tenant, "UPDATE memory SET state = 'forgotten' WHERE tenant_id = $1")
        await run(database, tenant, "DELETE FROM memory WHERE tenant_id = $1")
        assert await counted(database, tenant) == 0

    async def test_writers_at_once_fill_it_exactly(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await limit(database, tenant, stored_memories=25)
        answers = await asyncio.gather(*(post(client, content=f"memory {n}") for n in range(60)))
        assert Counter(answer.status_code for answer in answers) == {201: 25, 403: 35}
        assert await counted(database, tenant) == 25

    async def test_writers_at_once_do_not_overrun_it_where_they_stop_going_side_by_side(
        self, database: Database, tenant: TenantId
    ) -> None:
        """Far from the limit writers share a lock, near it each has it alone: they pass from one to the other here."""
        async with database.tenant(tenant) as connection:
            room = 8 * int(await connection.fetchval("SELECT current_setting('max_connections')"))
        await limit(database, tenant, stored_memories=5000 + 2 * room)
        await run(database, tenant, _INSERT, 4990)

        async def write(size: int) -> str:
            for _ in range(50):
                try:
                    await run(database, tenant, _INSERT, size)
                except QuotaExceeded:
                    return "full"
                except Exception as error:
                    if not is_contention(error):
                        raise
                else:
                    return "written"
            return "never"

        sizes = [1, 8, 2, 100, 5] * 40
        outcome = Counter(await asyncio.gather(*(write(size) for size in sizes)))
        assert outcome["never"] == 0
        found = await counted(database, tenant)
        assert 5000 + 2 * room - 100 < found <= 5000 + 2 * room
        assert outcome["full"] > 0

    async def test_a_default_of_the_installation_holds_until_a_tenant_has_its_own(
        self, postgres_settings: PostgresSettings, tenant: TenantId
    ) -> None:
        async with Database.open(postgres_settings, stored_memories=3) as database:
            await run(database, tenant, _INSERT, 3)
            with pytest.raises(QuotaExceeded):
                await run(database, tenant, _INSERT, 1)
            await limit(database, tenant, stored_memories="unlimited")
            await run(database, tenant, _INSERT, 1)
            await limit(database, tenant, stored_memories=0)
            with pytest.raises(QuotaExceeded) as refused:
                await run(database, tenant, _INSERT, 1)
            assert refused.value.extra == {"quota": "stored_memories", "limit": 0, "used": 4}

    async def test_a_count_that_is_wrong_is_mended(self, database: Database, tenant: TenantId) -> None:
        await run(database, tenant, _INSERT, 5)
        await run(database, tenant, "UPDATE memory_count SET stored = stored + 7, held = held + 3 WHERE tenant_id = $1")
        await limit(database, tenant, stored_memories=1)
        async with database.tenant(tenant) as connection:
            recount = await recount_memories(tenant, connection)
        assert (recount.stored, recount.counted) == (StoredCount(5, 0), StoredCount(12, 3))
        assert await counted(database, tenant) == 5
        # And the other way, which is no writing of memories either: a full quota is no reason to go on counting wrong.
        await run(database, tenant, "UPDATE memory_count SET stored = stored - 3 WHERE tenant_id = $1")
        async with database.tenant(tenant) as connection:
            recount = await recount_memories(tenant, connection)
        assert await counted(database, tenant) == 5

    async def test_it_is_right_after_postgres_was_killed_among_writes(self) -> None:
        with PostgresServer() as server:
            name = server.create_database()
            await asyncio.to_thread(upgrade, server.owner_url(name), "memplane_app")
            settings = PostgresSettings.model_validate({"url": server.app_url(name)})
            async with Database.open(settings) as database:
                tenant = await make_tenant(database)
                written = 0
                enough = asyncio.Event()

                async def write() -> None:
                    nonlocal written
                    with suppress(MemplaneError):
                        while True:
                            await run(database, tenant, _INSERT, 3)
                            written += 3
                            if written > 100:
                                enough.set()
                            await run(database, tenant, _DELETE_ONE)

                writers = [asyncio.create_task(write()) for _ in range(4)]
                await enough.wait()
                server.kill()
                await asyncio.gather(*writers)
            server.start()
            async with Database.open(settings) as database:
                assert await counted(database, tenant) > 0


async def tokens(database: Database, tenant: TenantId) -> int:
    async with database.tenant(tenant) as connection:
        return await tokens_today(tenant, connection)


class TestTokensADay:
    @pytest.fixture(autouse=True)
    def meter(self, service: Any, database: Database) -> TokenQuota:
        service.meter = TokenQuota(database, UsageMeter(database), defaults=EffectiveLimits())
        return service.meter

    async def test_what_is_embedded_later_is_charged_when_it_is_written(
        self, client: httpx2.AsyncClient, service: Any, database: Database, tenant: TenantId
    ) -> None:
        await limit(database, tenant, tokens_a_day=60)
        service.embedder.down = True
        assert (await post(client, content="x" * 199)).status_code == 202
        assert await tokens(database, tenant) == 50
        assert (await post(client, content="x" * 199)).status_code == 200
        assert await tokens(database, tenant) == 50

    async def test_more_than_is_left_is_refused_before_it_is_stored(
        self, client: httpx2.AsyncClient, database: Database, tenant: TenantId
    ) -> None:
        await limit(database, tenant, tokens_a_day=15_000)
        memories = [{"content": f"{n} {'x' * 400}"} for n in range(200)]
        answer = await client.post("/v1/memories/batch", json={"memories": memories})
        assert (answer.status_code, answer.json()["quota"], answer.json()["used"]) == (403, "tokens_a_day", 0)
        assert await counted(database, tenant) == 0
        await limit(database, tenant, tokens_a_day=25_000)
        answer = await client.post("/v1/memories/batch", json={"memories": memories})
        assert {item["status"] for item in answer.json()["results"]} == {202}
        assert 20_000 < await tokens(database, tenant) < 21_000

    async def test_nothing_left_refuses_until_the_day_is_over(
        self, meter: TokenQuota, database: Database, tenant: TenantId
    ) -> None:
        await limit(database, tenant, tokens_a_day=10)
        async with database.tenant(tenant) as connection:
            await add_tokens(tenant, connection, 10)
        with pytest.raises(QuotaExceeded) as refused:
            await meter.allowance(tenant)
        assert refused.value.extra == {"quota": "tokens_a_day", "limit": 10, "used": 10}
        await run(database, tenant, "UPDATE usage_day SET day = day - 1 WHERE tenant_id = $1")
        allowance = await meter.allowance(tenant)
        assert allowance is not None
        assert allowance.left == 10

    async def test_a_tenant_without_a_quota_is_counted_soon(self, database: Database, tenant: TenantId) -> None:
        usage = UsageMeter(database)
        meter = TokenQuota(database, usage, defaults=EffectiveLimits())
        assert await meter.allowance(tenant) is None
        await meter.spent(tenant, 7)
        assert await tokens(database, tenant) == 0
        await usage.flush()
        assert await tokens(database, tenant) == 7

"""Kicks over a real Valkey."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from memplane_core.clients.jobs import CeleryKicker, kick_key
from memplane_core.contracts.jobs import QUEUE_INDEX, TASK_DRAIN
from memplane_core.domain.tenancy import TenantId
from memplane_core.settings import RedisSettings
from memplane_core.testing.valkey import ValkeyServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def broker(valkey: ValkeyServer) -> AsyncGenerator[Redis]:
    client: Redis = Redis.from_url(valkey.url, protocol=3)
    await client.flushall()
    yield client
    await client.aclose()


def settings_of(valkey: ValkeyServer) -> RedisSettings:
    return RedisSettings.model_validate({"broker_url": valkey.url, "cache_url": valkey.url, "timeout_s": 5})


@pytest.fixture
async def kicker(valkey: ValkeyServer) -> AsyncGenerator[CeleryKicker]:
    kicker = CeleryKicker(settings_of(valkey))
    kicker.start()
    yield kicker
    await asyncio.to_thread(kicker.close)


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - another process does not tell
            await asyncio.sleep(0.02)


class TestKicks:
    async def test_many_kicks_of_a_tenant_are_one_message_until_its_drain_begins(
        self, kicker: CeleryKicker, broker: Redis
    ) -> None:
        one, two = TenantId(uuid4()), TenantId(uuid4())

        async def waiting(count: int) -> bool:
            return await broker.llen(QUEUE_INDEX) == count

        for _ in range(100):
            kicker.kick(one)
        kicker.kick(two)
        await until(lambda: waiting(2))
        messages = [json.loads(raw) for raw in await broker.lrange(QUEUE_INDEX, 0, -1)]
        assert {message["headers"]["task"] for message in messages} == {TASK_DRAIN}
        assert {message["headers"]["kwargsrepr"] for message in messages} == {
            str({"tenant": str(tenant)}) for tenant in (one, two)
        }
        await broker.delete(kick_key(one))  # as the drain does before it looks
        kicker.kick(one)
        kicker.kick(two)
        await until(lambda: waiting(3))

    async def test_a_message_that_was_lost_holds_up_the_next_kick_for_seconds_only(
        self, kicker: CeleryKicker, broker: Redis
    ) -> None:
        tenant = TenantId(uuid4())
        kicker.kick(tenant)

        async def kicked() -> bool:
            return bool(await broker.exists(kick_key(tenant)))

        await until(kicked)
        assert 0 < await broker.ttl(kick_key(tenant)) <= 10

    async def test_before_start_and_after_close_nothing_happens(self, valkey: ValkeyServer, broker: Redis) -> None:
        kicker = CeleryKicker(settings_of(valkey))
        kicker.kick(TenantId(uuid4()))
        kicker.start()
        kicker.close()
        kicker.kick(TenantId(uuid4()))
        assert await broker.llen(QUEUE_INDEX) == 0


class TestBrokerAway:
    async def test_kicks_return_at_once_are_lost_and_work_again_when_it_is_back(self) -> None:
        with ValkeyServer() as valkey:
            kicker = CeleryKicker(settings_of(valkey))
            kicker.start()
            valkey.kill()
            began = time.perf_counter()
            for _ in range(1_000):
                kicker.kick(TenantId(uuid4()))
            assert time.perf_counter() - began < 5  # a thousand tries to connect would take longer
            valkey.start()
            tenant = TenantId(uuid4())
            async with Redis.from_url(valkey.url, protocol=3) as broker:

                async def sent() -> bool:
                    kicker.kick(tenant)
                    return await broker.llen(QUEUE_INDEX) > 0

                await until(sent, timeout_s=30)
                assert await broker.exists(kick_key(tenant))
            await asyncio.to_thread(kicker.close)

"""Tokens as the embedding service counts them, charged to a quota in Postgres."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.integration.embedding.conftest import MINILM, SECRET

from memplane_core.clients.embedding import HttpEmbedder
from memplane_core.contracts.limits import EffectiveLimits
from memplane_core.domain.embedding import EmbedItem
from memplane_core.domain.errors import QuotaExceeded
from memplane_core.domain.tenancy import TenantId
from memplane_core.security.internal import InternalTokens
from memplane_core.storage.session import Database
from memplane_core.storage.token_quota import TokenQuota
from memplane_core.storage.usage_days import UsageMeter, tokens_today
from memplane_core.testing.process import ServiceProcess
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

FOUR = "hello there"
"""Two words and what the model puts before and after a text: four tokens."""


@pytest.fixture
async def tenant(database: Database) -> TenantId:
    return await make_tenant(database)


@pytest.fixture
async def embedder(service: ServiceProcess, database: Database) -> AsyncGenerator[HttpEmbedder]:
    meter = TokenQuota(database, UsageMeter(database), defaults=EffectiveLimits(tokens_a_day=10))
    made = HttpEmbedder(service.url, InternalTokens(SECRET), meter=meter)
    yield made
    await made.close()


async def ask(embedder: HttpEmbedder, tenant: TenantId, *texts: str, lane: Any = "write") -> None:
    items = [EmbedItem(text) for text in texts]
    await embedder.embed_passages(tenant, items, model=MINILM, lane=lane, timeout_s=60)


async def used(database: Database, tenant: TenantId) -> int:
    async with database.tenant(tenant) as connection:
        return await tokens_today(tenant, connection)


class TestCharging:
    async def test_each_text_is_charged_once_and_what_a_cache_has_is_free(
        self, embedder: HttpEmbedder, database: Database, tenant: TenantId
    ) -> None:
        await ask(embedder, tenant, FOUR, FOUR)
        assert await used(database, tenant) == 4
        await ask(embedder, tenant, FOUR)
        assert await used(database, tenant) == 4
        await embedder.embed_query(tenant, FOUR, model=MINILM, timeout_s=60)
        assert await used(database, tenant) == 8

    async def test_more_than_is_left_is_refused_and_costs_nothing(
        self, embedder: HttpEmbedder, database: Database, tenant: TenantId
    ) -> None:
        await ask(embedder, tenant, FOUR)
        with pytest.raises(QuotaExceeded) as refused:
            await ask(embedder, tenant, "one two three four five six")
        assert refused.value.extra == {"quota": "tokens_a_day", "limit": 10, "used": 4}
        assert "takes 8 tokens, and 6 are left" in refused.value.detail
        assert await used(database, tenant) == 4
        await ask(embedder, tenant, "one two three four")
        with pytest.raises(QuotaExceeded):
            await embedder.embed_query(tenant, "anything", model=MINILM, timeout_s=60)

    async def test_the_installations_own_work_is_neither_charged_nor_refused(
        self, embedder: HttpEmbedder, database: Database, tenant: TenantId
    ) -> None:
        await ask(embedder, tenant, "one two three four five six seven eight nine ten eleven", lane="bulk")
        assert await used(database, tenant) == 0

"""A tenant with many odd memories, as they are read back."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memplane_core.domain.memory import Memory
from memplane_core.domain.tenancy import TenantId
from memplane_core.storage import memories
from memplane_core.storage.session import Database
from memplane_core.testing.embedder import HashEmbedder
from memplane_core.testing.memories import MemoryDesk

TEXTS = [
    "u1", "U1", "u2", "a", "b", "ab", "é", "e\u0301", "退款", "👩‍👧", "\uffff", "%", "_", "'", '"', "\\", "\\'", "$1",
    "::text", "--", '") or true or ("', "x' or '1' == '1", "a\nb", "a\tb", " ", "null", "1", "true",
    "x' OR tenant_id IS NOT NULL --",
]  # fmt: skip
START = datetime(2026, 5, 8, 13, 56, tzinfo=UTC)
TIMES = [
    START + timedelta(seconds=seconds)
    for seconds in (-1, -0.5, 0, 0.000001, 0.5, 0.999999, 1, 86_400, -3_000_000_000, 200_000_000_000)
]
NUMBERS = [0, 1, 2, 3, 5, -1, 0.1, 0.5, 1.0, 2.5, 1e16, 1e23, 5e-324, 2**53 + 1, float(2**53), 10**30, 1e30]
SCALARS = [*TEXTS, *NUMBERS, True, False, None, ""]
KEYS = ["a", "b", "lang", "a.b", "a\\b", "0", '") or true or ("', "退款", "x' or '1' == '1"]
COUNT = 300


def json_value(chance: random.Random, depth: int = 3) -> Any:
    """Mostly scalars."""
    kind = chance.random()
    if depth == 0 or kind < 0.6:
        return chance.choice(SCALARS)
    if kind < 0.8:
        return [json_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(KEYS): json_value(chance, depth - 1) for _ in range(chance.randrange(4))}


def _fields(chance: random.Random) -> dict[str, Any]:
    def maybe(values: list[Any]) -> Any:
        return chance.choice(values) if chance.random() < 0.7 else None

    return {
        "external_id": f"{chance.choice(TEXTS)}{chance.randrange(10**9)}" if chance.random() < 0.3 else None,
        "actor": maybe(TEXTS),
        "scene": [chance.choice(TEXTS[:8]) for _ in range(chance.randrange(4))],
        "source": maybe(TEXTS),
        "memory_type": chance.choice(TEXTS),
        "user_id": maybe(TEXTS[:8]),
        "agent_id": maybe(TEXTS),
        "session_id": maybe(TEXTS),
        "importance": chance.choice([0, 0.1, 0.5, 1, 1 / 3]),
        "priority": chance.randint(1, 5),
        "pinned": chance.random() < 0.5,
        "metadata": {chance.choice(KEYS): json_value(chance) for _ in range(chance.randrange(5))},
        "occurred_at": chance.choice(TIMES),
        "occurred_given": True,
        "valid_from": maybe(TIMES[1:3]),
        "valid_to": maybe(TIMES[4:7]),
        "expires_at": maybe([time.replace(microsecond=0) for time in TIMES if time > START - timedelta(days=1)]),
    }


class Everyone(list[Memory]):
    """Told to whoever reads a failing case in one word."""

    def __repr__(self) -> str:
        return "everyone"


_USE = """
UPDATE memory_usage SET access_count = $3, last_accessed_at = $4 WHERE tenant_id = $1 AND memory_id = $2
"""
_CHANGE = """
UPDATE memory SET version = $3, created_at = $4, updated_at = $5 WHERE tenant_id = $1 AND id = $2
"""


@pytest.fixture
async def everyone(database: Database, tenant: TenantId) -> list[Memory]:
    """The tenant's memories; some have been used and changed."""
    chance = random.Random(20260508)
    desk = MemoryDesk(database, tenant, HashEmbedder())
    ids = [(await desk.write("remembered", embedded=False, **_fields(chance)))[0] for _ in range(COUNT)]
    async with database.tenant(tenant) as connection:
        for memory_id in ids[::3]:
            await connection.execute(_USE, tenant, memory_id, chance.randrange(4), chance.choice(TIMES))
            changed = (chance.randint(1, 3), chance.choice(TIMES), chance.choice(TIMES))
            await connection.execute(_CHANGE, tenant, memory_id, *changed)
        found = await memories.read(tenant, connection, ids, also_expired=True)
    assert len(found) == COUNT
    return Everyone(found.values())

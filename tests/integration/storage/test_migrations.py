"""What becomes of rows that an older schema holds."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid4

import msgspec
import pytest
from anyio import to_thread

from memplane_core.domain.memory import head_of
from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.text import terms, tokens
from memplane_core.settings import PostgresSettings
from memplane_core.storage import words
from memplane_core.storage.limits import StoredCount, recount_memories
from memplane_core.storage.migrate import upgrade
from memplane_core.storage.session import Connection, Database
from memplane_core.storage.words import Owner
from memplane_core.testing.postgres import PostgresServer

pytestmark = pytest.mark.anyio

AT = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
ANYONE = Owner(None, None, None)


class Old(msgspec.Struct, frozen=True, kw_only=True):
    """A memory as the code of revision 0001 wrote it: the tokens of head and window, a row a window."""

    id: UUID = msgspec.field(default_factory=uuid4)
    windows: tuple[str, ...]
    owner: Owner = ANYONE
    state: str = "active"

    @property
    def terms(self) -> bytes:
        """Its words in today's form."""
        return b"".join(terms(head_of(None, AT) + window) for window in self.windows)


def old_memories(long: UUID) -> dict[str, Old]:
    """One of each kind. `long` is the id of the one that has two windows: ids are unique within a tenant alone."""
    return {
        "code": Old(windows=("Melanie went to the café in Zürich about ORD-7781",), owner=Owner("u1", None, None)),
        "chinese": Old(windows=("订单已经退款成功",), owner=Owner("用户 1", "a", "s")),
        "no words": Old(windows=("???",), owner=Owner(None, None, "s")),
        "no chunk": Old(windows=(), owner=Owner(None, "a", None)),
        "long": Old(
            id=long, windows=("the first of them, the first", "windows that follow"), owner=Owner("u1", None, "s")
        ),
        "forgotten": Old(windows=("ORD-7781 was forgotten",), state="forgotten"),
    }


async def write(tenant: TenantId, connection: Connection, memories: list[Old]) -> None:
    """A tenant and its memories, in the schema of revision 0001."""
    await connection.execute("INSERT INTO tenant (id, name) VALUES ($1, $2)", tenant, str(tenant))
    await connection.execute(
        "INSERT INTO generation (tenant_id, number, model, dim, index_type, index_params)"
        " VALUES ($1, 1, 'hash', 64, 'HNSW', '{}'::jsonb)",
        tenant,
    )
    for memory in memories:
        await connection.execute(
            """
            INSERT INTO memory (tenant_id, id, content, scene, memory_type, user_id, agent_id, session_id, importance,
                pinned, metadata, occurred_at, occurred_given, state)
            VALUES ($1, $2, $3, '{}', 'experience', $4, $5, $6, 0.5, false, '{}'::jsonb, $7, true, $8)
            """,
            *(tenant, memory.id, "".join(memory.windows) or "???"),
            *(memory.owner.user_id, memory.owner.agent_id, memory.owner.session_id),
            *(AT, memory.state),
        )
        for n, window in reversed(list(enumerate(memory.windows))):  # their numbers alone say which is first
            await connection.execute(
                "INSERT INTO chunk (tenant_id, generation, memory_id, rev, n, span_start, span_end, tokens)"
                " VALUES ($1, 1, $2, 1, $3, 0, 3, $4::text[])",
                *(tenant, memory.id, n, tokens(head_of(None, AT) + window)),
            )


async def observe(tenant: TenantId, connection: Connection, *, count: int) -> None:
    """Observations, in the schema of revision 0017."""
    await connection.execute(
        """
        INSERT INTO observation (tenant_id, id, seq, session_id, content, scene, memory_type, importance, unscored,
            metadata, occurred_at, occurred_given, observed_at)
        SELECT $1, gen_random_uuid(), n, 's', 'seen', '{}', 'experience', 0.5, false, '{}', $2, true, $2
        FROM generate_series(1, $3) AS n
        """,
        *(tenant, AT, count),
    )


@pytest.fixture(scope="module")
async def aged(postgres: PostgresServer) -> AsyncGenerator[tuple[Database, list[tuple[TenantId, dict[str, Old]]]]]:
    """A database of revision 0001 in which two tenants remember the same, upgraded to the newest.

    On the way, when there were observations, the one has come to hold two and the other three.
    """
    name = postgres.create_database()
    migrate = partial(upgrade, postgres.owner_url(name), "memplane_app")
    await to_thread.run_sync(partial(migrate, revision="0001"))
    settings = PostgresSettings.model_validate({"url": postgres.app_url(name)})
    shared = uuid4()
    tenants = [(TenantId(uuid4()), old_memories(shared)) for _ in range(2)]
    async with Database.open(settings) as database:
        for tenant, memories in tenants:
            async with database.tenant(tenant) as connection:
                await write(tenant, connection, list(memories.values()))
    await to_thread.run_sync(partial(migrate, revision="0017"))
    async with Database.open(settings) as database:
        for count, (tenant, _) in enumerate(tenants, start=2):
            async with database.tenant(tenant) as connection:
                await observe(tenant, connection, count=count)
    await to_thread.run_sync(migrate)
    async with Database.open(settings) as database:
        yield database, tenants
    postgres.drop_database(name)


class TestWordsOfOldMemories:
    async def test_are_those_that_are_written_today_and_are_found(
        self, aged: tuple[Database, list[tuple[TenantId, dict[str, Old]]]]
    ) -> None:
        database, tenants = aged
        for tenant, memories in tenants:
            active = {memory.id: memory for memory in memories.values() if memory.state == "active"}
            async with database.tenant(tenant) as connection:
                rows = await connection.fetch("SELECT * FROM memory_words")
                assert {row["memory_id"] for row in rows} == active.keys()
                for row in rows:
                    memory = active[row["memory_id"]]
                    marks = {
                        *words.term_marks(tenant, memory.terms),
                        *words.owner_marks(tenant, memory.owner),
                    }
                    assert (row["tenant_id"], row["terms"]) == (tenant, memory.terms)
                    assert (set(row["marks"]), len(row["marks"])) == (marks, len(marks))
                    assert row["session"] == words.session_of(memory.owner)

                for query, owner, name in (
                    ("ORD-7781", ANYONE, "code"),
                    ("cafe zurich", ANYONE, "code"),
                    ("退款", ANYONE, "chinese"),
                    ("退款", Owner("用户 1", "a", "s"), "chinese"),
                    ("follow", Owner("u1", None, "s"), "long"),
                ):
                    found = await words.nominate(tenant, connection, terms(query), owner=owner, limit=10)
                    assert found == [memories[name].id], query
                assert not await words.nominate(
                    tenant, connection, terms("退款"), owner=Owner("u1", None, None), limit=10
                )


class TestObservationsOfAnOlderSchema:
    async def test_count_as_stored_from_the_upgrade_on(
        self, aged: tuple[Database, list[tuple[TenantId, dict[str, Old]]]]
    ) -> None:
        database, tenants = aged
        for held, (tenant, memories) in enumerate(tenants, start=2):
            active = sum(memory.state == "active" for memory in memories.values())
            async with database.tenant(tenant) as connection:
                counts = await recount_memories(tenant, connection, mend=False)
            assert counts.stored == counts.counted == StoredCount(total=active + held, held=held)

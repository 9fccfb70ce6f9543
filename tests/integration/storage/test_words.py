"""Which memories share words with a query, looked up by marks."""

from collections.abc import Sequence
from uuid import UUID, uuid4

import asyncpg
import pytest

from memplane_core.domain.tenancy import TenantId
from memplane_core.domain.text import terms
from memplane_core.storage import words
from memplane_core.storage.session import Database
from memplane_core.storage.words import PER_WORD, Moved, Owner, Words
from memplane_core.testing.tenants import make_tenant

pytestmark = pytest.mark.anyio

ANYONE = Owner(None, None, None)


@pytest.fixture
async def other(database: Database) -> TenantId:
    return await make_tenant(database)


async def write(
    database: Database, tenant: TenantId, *texts: str, owner: Owner = ANYONE, marked_for: TenantId | None = None
) -> list[UUID]:
    """Words of memories that are nothing else; their marks as another tenant's would be, where `marked_for` is one."""
    written = [Words(uuid4(), terms(text), owner) for text in texts]
    async with database.tenant(tenant) as connection:
        await words.replace_words(tenant, connection, written)
        if marked_for is not None:
            for its in written:
                marks = words.term_marks(marked_for, its.terms)
                await connection.execute(
                    "UPDATE memory_words SET marks = $2::int4[] WHERE memory_id = $1", its.memory_id, marks
                )
    return [its.memory_id for its in written]


async def find(
    database: Database, tenant: TenantId, query: str, *, owner: Owner = ANYONE, limit: int = 100
) -> list[UUID]:
    async with database.tenant(tenant) as connection:
        return await words.nominate(tenant, connection, terms(query), owner=owner, limit=limit)


class TestTenants:
    async def test_another_than_the_transactions_is_refused(
        self, database: Database, tenant: TenantId, other: TenantId
    ) -> None:
        await write(database, other, "refund of ORD-7781")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with database.tenant(tenant) as connection:
                await words.nominate(other, connection, terms("refund"), owner=ANYONE, limit=10)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with database.system() as connection:
                await words.nominate(other, connection, terms("refund"), owner=ANYONE, limit=10)

    async def test_with_the_same_texts_find_each_their_own(
        self, database: Database, tenant: TenantId, other: TenantId
    ) -> None:
        texts = ("refund of ORD-7781", "refund", "a day at the beach")
        mine, theirs = await write(database, tenant, *texts), await write(database, other, *texts)
        for query, places in (("refund", {0, 1}), ("ORD-7781", {0}), ("beach day", {2})):
            assert set(await find(database, tenant, query)) == {mine[place] for place in places}
            assert set(await find(database, other, query)) == {theirs[place] for place in places}

    async def test_with_the_same_marks_even_never_meet(
        self, database: Database, tenant: TenantId, other: TenantId
    ) -> None:
        """Two words of two tenants can have one mark by chance: the tenant itself is asked for as well."""
        mine = await write(database, tenant, "refund")
        await write(database, other, "refund", marked_for=tenant)
        assert await find(database, tenant, "refund") == mine

    async def test_have_no_mark_in_common(self, tenant: TenantId, other: TenantId) -> None:
        owner, text = Owner("u", "a", "s"), terms("refund of ORD-7781 on a day at the beach")
        for marks in (words.term_marks(tenant, text), words.owner_marks(tenant, owner)):
            assert marks
            assert not set(marks) & {*words.term_marks(other, text), *words.owner_marks(other, owner)}


class TestOwners:
    async def test_all_that_are_named_have_to_be_the_memorys(self, database: Database, tenant: TenantId) -> None:
        [whole] = await write(database, tenant, "a note", owner=Owner("u", "a", "s"))
        [user] = await write(database, tenant, "a note", owner=Owner("u", None, None))
        [agent] = await write(database, tenant, "a note", owner=Owner("v", "a", None))
        [swapped] = await write(database, tenant, "a note", owner=Owner("a", "u", "u"))
        [nobody] = await write(database, tenant, "a note")
        expected: Sequence[tuple[Owner, set[UUID]]] = (
            (ANYONE, {whole, user, agent, swapped, nobody}),
            (Owner("u", None, None), {whole, user}),
            (Owner(None, "a", None), {whole, agent}),
            (Owner(None, None, "s"), {whole}),
            (Owner("u", "a", "s"), {whole}),
            (Owner("u", "b", None), set()),
        )
        for owner, found in expected:
            assert set(await find(database, tenant, "note", owner=owner)) == found, owner

    async def test_are_no_words_and_words_no_owners(self, database: Database, tenant: TenantId) -> None:
        [owned] = await write(database, tenant, "something", owner=Owner("zebra", None, None))
        [worded] = await write(database, tenant, "user zebra something")
        assert await find(database, tenant, "zebra") == [worded]
        assert await find(database, tenant, "something", owner=Owner("zebra", None, None)) == [owned]

    async def test_change_and_the_words_stay(self, database: Database, tenant: TenantId) -> None:
        before, after = Owner("u", "a", "s"), Owner("v", "a", None)
        [moved, _] = await write(database, tenant, "note of ORD-7781", "note", owner=before)
        async with database.tenant(tenant) as connection:
            await words.move_words(tenant, connection, [Moved(moved, before, after)])
            session = await connection.fetchval("SELECT session FROM memory_words WHERE memory_id = $1", moved)
        assert session is None
        for owner in (before, Owner("u", None, None), Owner(None, None, "s")):
            assert await find(database, tenant, "ORD-7781", owner=owner) == []
        for owner in (ANYONE, after, Owner(None, "a", None)):
            assert await find(database, tenant, "ORD-7781", owner=owner) == [moved]


class TestWordsThatMoreHaveThanAreLookedAt:
    @pytest.fixture
    async def crowd(self, database: Database, tenant: TenantId) -> list[UUID]:
        """More memories that share two words than either word nominates."""
        return await write(database, tenant, *(f"common usual filler{n}" for n in range(PER_WORD + 100)))

    async def test_nominate_no_more_beside_other_words(
        self, database: Database, tenant: TenantId, crowd: list[UUID]
    ) -> None:
        beside = await find(database, tenant, "common absent", limit=2 * PER_WORD)
        assert (len(beside), len(set(beside))) == (PER_WORD, PER_WORD)
        alone = await find(database, tenant, "common", limit=2 * PER_WORD)
        assert sorted(alone) == sorted(crowd)
        assert len(await find(database, tenant, "common", limit=7)) == 7

    async def test_count_less_than_a_rare_one(self, database: Database, tenant: TenantId, crowd: list[UUID]) -> None:
        [rare] = await write(database, tenant, "blue giraffe")
        found = await find(database, tenant, "common giraffe", limit=10)
        assert found[0] == rare
        assert set(found[1:]) <= set(crowd)

    async def test_are_found_where_all_of_them_come_together(
        self, database: Database, tenant: TenantId, crowd: list[UUID]
    ) -> None:
        """Each word alone nominates others: the last memory that has both is beyond what either looks at."""
        await write(database, tenant, *(f"common plain{n}" for n in range(100)))
        half = await write(database, tenant, *(f"scarce usual{n}" for n in range(PER_WORD + 50)))
        [both] = await write(database, tenant, "common scarce")
        found = await find(database, tenant, "common scarce", limit=10)
        assert found[0] == both
        assert both not in {*crowd, *half}

    async def test_are_looked_up_within_one_owner(
        self, database: Database, tenant: TenantId, crowd: list[UUID]
    ) -> None:
        [quiet] = await write(database, tenant, "common", owner=Owner("quiet", None, None))
        assert await find(database, tenant, "common", owner=Owner("quiet", None, None)) == [quiet]
        assert quiet not in crowd

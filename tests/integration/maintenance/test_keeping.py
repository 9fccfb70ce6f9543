"""Priorities, prune, expire and purge: what they do, what they leave alone, and what a year of them comes to."""

import asyncio
import random
from datetime import timedelta
from typing import Any, Final

import pytest
from tests.integration.maintenance.keeping import Keeping

from memplane_core.contracts.policy import MaintenancePolicy, PrioritySchedule, PruneSchedule
from memplane_core.domain.priority import PriorityRules, Usage, stepped
from memplane_core.storage.history import history_page
from memplane_core.storage.markers import Author, hide, unhide
from memplane_core.testing.memories import MemoryDesk
from memplane_core.testing.rows import eventually

pytestmark = pytest.mark.anyio

YEAR: Final = 365


@pytest.fixture
def keeping(desk: MemoryDesk) -> Keeping:
    return Keeping(desk)


def rules(**given: Any) -> MaintenancePolicy:
    return MaintenancePolicy(prune=PruneSchedule(**given))


class TestPriorities:
    async def test_sql_says_what_the_pure_function_says(self, keeping: Keeping) -> None:
        """Over random use, at random ages, with rules of its own."""
        chance = random.Random(7)
        ids = await keeping.write(*(f"note {n}" for n in range(400)))
        start = keeping.now
        usages: list[tuple[int, Usage]] = []
        for memory_id in ids:
            hours = chance.choice([0.0, 10.0, 24.0, chance.uniform(0, 20_000)])
            priority = chance.randint(1, 5)
            recalls, helpful, not_helpful = (int(chance.expovariate(1 / mean)) for mean in (20, 2, 2))
            age_h = (start + timedelta(hours=20_000) - (start + timedelta(hours=hours))).total_seconds() / 3600
            usages.append((priority, Usage(age_h=age_h, recalls=recalls, helpful=helpful, not_helpful=not_helpful)))
            await keeping.sql(
                "UPDATE memory SET created_at = $2 WHERE id = $1", memory_id, start + timedelta(hours=hours)
            )
            await keeping.sql(
                "UPDATE memory_usage SET priority = $2, access_count = $3, helpful = $4, not_helpful = $5"
                " WHERE memory_id = $1",
                *(memory_id, priority, recalls, helpful, not_helpful),
            )
        keeping.pass_time(hours=20_000)
        given = PriorityRules(thresholds=(-4.0, -2.5, -1.25, 0.1), feedback_weight=0.7)
        schedule = PrioritySchedule(thresholds=given.thresholds, feedback_weight=given.feedback_weight)
        policy = MaintenancePolicy(priorities=schedule)
        expected = [stepped(priority, usage, given) for priority, usage in usages]
        job = await keeping.run("priorities", policy=policy)
        assert await keeping.priorities(ids) == expected
        raised = sum(after > before for after, (before, _) in zip(expected, usages, strict=True))
        lowered = sum(after < before for after, (before, _) in zip(expected, usages, strict=True))
        assert (raised > 30, lowered > 30) == (True, True)
        assert job.result == {"checked": 400, "raised": raised, "lowered": lowered}

    async def test_only_usage_changes(self, keeping: Keeping) -> None:
        [memory_id] = await keeping.write("note")
        [before], told = await keeping.read([memory_id]), await keeping.desk.outbox()
        keeping.pass_time(days=200)
        job = await keeping.run("priorities")
        [after] = await keeping.read([memory_id])
        assert before is not None
        assert after is not None
        assert (after.priority, after.version, after.updated_at) == (2, before.version, before.updated_at)
        assert (job.sample, await keeping.desk.outbox()) == ([memory_id], told)

    async def test_one_step_a_run_and_none_for_what_is_pinned_or_rests(self, keeping: Keeping) -> None:
        [idle] = await keeping.write("idle", priority=5)
        [pinned] = await keeping.write("pinned", priority=5, pinned=True)
        keeping.pass_time(days=200)
        seen: list[list[int]] = []
        for hours in (0, 11.9, 0.2, 24, 24, 24):
            keeping.pass_time(hours=hours)
            await keeping.run("priorities")
            seen.append(await keeping.priorities([idle, pinned]))
        assert seen == [[4, 5], [4, 5], [3, 5], [2, 5], [1, 5], [1, 5]]

    async def test_feedback_moves_it(self, keeping: Keeping) -> None:
        good, bad = await keeping.write("good", "bad")
        await keeping.sql("UPDATE memory_usage SET helpful = 9 WHERE memory_id = $1", good)
        await keeping.sql("UPDATE memory_usage SET not_helpful = 9 WHERE memory_id = $1", bad)
        keeping.pass_time(days=2)
        await keeping.run("priorities")
        assert await keeping.priorities([good, bad]) == [4, 2]

    @pytest.mark.parametrize("change", ["pinned = true", "state = 'forgotten'"])
    async def test_what_is_pinned_or_hidden_at_the_last_moment_stays(self, keeping: Keeping, change: str) -> None:
        [memory_id] = await keeping.write("idle", priority=5)
        keeping.pass_time(days=YEAR)
        job_id = await keeping.ask("priorities")
        async with keeping.database.tenant(keeping.tenant) as connection:
            await connection.execute(f"UPDATE memory SET {change} WHERE id = $1", memory_id)
            task = await waiting_for_a_lock(keeping, keeping.slice(job_id))
        await task
        assert (await keeping.job(job_id)).result == {"checked": 1, "raised": 0, "lowered": 0}
        assert await keeping.priorities([memory_id]) == [5]

    async def test_a_dry_run_of_a_later_day_moves_nothing(self, keeping: Keeping) -> None:
        ids = await keeping.write("one", "two")
        job = await keeping.run("priorities", dry_run=True, as_of=keeping.now + timedelta(days=90))
        assert (job.result, job.sample) == ({"checked": 2, "raised": 0, "lowered": 2}, sorted(ids))
        assert await keeping.priorities(ids) == [3, 3]


class TestPrune:
    async def test_forgets_what_is_idle_and_of_low_priority_and_nothing_else(self, keeping: Keeping) -> None:
        idle = await keeping.write("idle", "idle too", priority=2)
        await keeping.write("valued", priority=3)
        await keeping.write("pinned", priority=1, pinned=True)
        await keeping.write("gone anyway", priority=1, expires_at=keeping.now)
        used = await keeping.write("used", priority=1)
        keeping.pass_time(days=1)
        await keeping.use(used)
        keeping.pass_time(days=YEAR - 1, minutes=1)
        dry = await keeping.run("prune", dry_run=True)
        assert await keeping.hidden() == set()
        real = await keeping.run("prune")
        assert dry.result == real.result == {"checked": 6, "forgotten": 2}
        assert dry.sample == real.sample == sorted(idle)
        assert await keeping.hidden() == set(idle)
        [memory] = await keeping.read(idle[:1])
        assert memory is not None
        assert memory.purge_at == keeping.now + timedelta(days=30)

    async def test_by_when_it_happened_spares_what_was_used_or_written_of_late(self, keeping: Keeping) -> None:
        long_ago = keeping.now - timedelta(days=2 * YEAR)
        old, used, new = [
            (await keeping.write(text, priority=1, occurred_at=at))[0]
            for text, at in (("old", long_ago), ("used", long_ago), ("new", keeping.now))
        ]
        policy = rules(age_by="occurred", max_idle_days=300, grace_days=7)
        assert (await keeping.run("prune", policy=policy)).result["forgotten"] == 0  # all were written today
        keeping.pass_time(days=31)
        await keeping.use([used])
        assert (await keeping.run("prune", policy=policy)).sample == [old]
        keeping.pass_time(days=29)
        assert (await keeping.run("prune", policy=policy)).sample == []
        keeping.pass_time(days=2)
        assert (await keeping.run("prune", policy=policy)).sample == [used]
        assert await keeping.priorities([new]) == [1]

    async def test_what_it_forgot_can_be_restored_and_says_who_did_it(self, keeping: Keeping) -> None:
        [memory_id] = await keeping.write("idle", priority=1)
        keeping.pass_time(days=YEAR)
        job = await keeping.run("prune")
        async with keeping.database.tenant(keeping.tenant) as connection:
            [last, _] = await history_page(keeping.tenant, connection, memory_id, before=None, limit=2)
            back = await unhide(keeping.tenant, connection, [memory_id], state="forgotten", author=Author("a", "b"))
        assert (last.event, last.key_id, last.request_id, back) == ("forgotten", "tester", str(job.id), [memory_id])

    async def test_what_is_pinned_at_the_last_moment_stays(self, keeping: Keeping) -> None:
        [memory_id] = await keeping.write("idle", priority=1)
        keeping.pass_time(days=YEAR)
        job_id = await keeping.ask("prune")
        async with keeping.database.tenant(keeping.tenant) as connection:
            await connection.execute("UPDATE memory SET pinned = true WHERE id = $1", memory_id)
            running = keeping.slice(job_id)
            task = await waiting_for_a_lock(keeping, running)
        await task
        assert (await keeping.job(job_id)).result == {"checked": 1, "forgotten": 0}
        assert await keeping.hidden() == set()

    async def test_what_was_edited_or_restored_of_late_stays(self, keeping: Keeping) -> None:
        idle, edited, restored = await keeping.write("idle", "edited", "restored", priority=1)
        keeping.pass_time(days=YEAR - 2)
        await keeping.sql("UPDATE memory SET updated_at = $2 WHERE id = $1", edited, keeping.now)
        keeping.pass_time(days=2)
        async with keeping.database.tenant(keeping.tenant) as connection:
            await hide(
                keeping.tenant, connection, [restored], state="forgotten", purge_at=None, author=Author("a", "b")
            )
            await unhide(keeping.tenant, connection, [restored], state="forgotten", author=Author("a", "b"))
        assert (await keeping.run("prune", dry_run=True)).sample == [idle]
        assert (await keeping.run("prune")).sample == [idle]
        keeping.pass_time(days=YEAR - 2)
        assert (await keeping.run("prune")).sample == [edited]


class TestExpireAndPurge:
    async def test_one_that_is_restored_meanwhile_stays_and_the_rest_goes(self, desk: MemoryDesk) -> None:
        keeping = Keeping(desk, size=2)
        over = await keeping.write(*map(str, range(5)))
        past = keeping.now - timedelta(days=1)
        await keeping.sql("UPDATE memory SET state = 'forgotten', purge_at = $2 WHERE id = ANY($1)", over, past)
        job_id = await keeping.ask("purge")
        async with keeping.database.tenant(keeping.tenant) as connection:
            await connection.execute("UPDATE memory SET state = 'active', purge_at = NULL WHERE id = $1", min(over))
            task = await waiting_for_a_lock(keeping, keeping.slice(job_id))
        await task
        assert ((await keeping.job(job_id)).state, (await keeping.job(job_id)).result) == ("done", {"deleted": 4})
        assert [memory_id for memory_id, _, _ in await keeping.everything()] == [min(over)]

    async def test_what_expired_long_ago_is_gone_for_good_in_whatever_state(self, keeping: Keeping) -> None:
        soon = keeping.now + timedelta(days=1)
        over = await keeping.write("one", "two", "three", expires_at=soon, scene=["a"])
        pinned = await keeping.write("pinned", expires_at=soon, pinned=True)
        kept = await keeping.write("for ever", "for longer", expires_at=None)
        await keeping.sql("UPDATE memory SET expires_at = $2 WHERE id = $1", kept[1], soon + timedelta(hours=1))
        keeping.pass_time(days=31)
        dry = await keeping.run("expire", dry_run=True)
        real = await keeping.run("expire")
        assert dry.result == real.result == {"deleted": 4}
        assert set(dry.sample) == set(real.sample) == {*over, *pinned}
        assert await keeping.rows_left([*over, *pinned]) == 0
        assert [memory_id for memory_id, _, _ in await keeping.everything()] == kept
        assert {row.memory_id for row in await keeping.desk.outbox() if row.op == "delete"} == {*over, *pinned}

    async def test_what_was_forgotten_is_deleted_when_its_grace_ends_and_not_before(self, keeping: Keeping) -> None:
        useless = await keeping.write("idle", "idle too", priority=1)
        [kept] = await keeping.write("kept", priority=4)
        keeping.pass_time(days=YEAR)
        await keeping.run("prune")
        keeping.pass_time(days=29)
        assert (await keeping.run("purge")).result == {"deleted": 0}
        keeping.pass_time(days=1)
        assert (await keeping.run("purge", dry_run=True)).result == {"deleted": 2}
        assert (await keeping.run("purge")).result == {"deleted": 2}
        assert await keeping.rows_left(useless) == 0
        assert [memory_id for memory_id, _, _ in await keeping.everything()] == [kept]


class TestAYear:
    async def test_what_is_used_rises_what_is_not_goes_and_what_is_pinned_stays(self, keeping: Keeping) -> None:
        """2,000 memories, a run of everything each fifth day."""
        idle = await keeping.write(*(f"idle {n}" for n in range(1_200)))
        reused = await keeping.write(*(f"reused {n}" for n in range(400)))
        tried = await keeping.write(*(f"tried once {n}" for n in range(300)))
        pinned = await keeping.write(*(f"pinned {n}" for n in range(100)), pinned=True)
        groups = {"idle": idle[0], "reused": reused[0], "tried": tried[0], "pinned": pinned[0]}
        rows: dict[str, list[int]] = {name: [] for name in groups}
        pruned_on: dict[int, int] = {}
        for day in range(5, 376, 5):
            keeping.pass_time(days=5)
            await keeping.use([*reused, *(tried if day == 5 else [])])
            await keeping.run("priorities")
            for name, priority in zip(groups, await keeping.priorities(list(groups.values())), strict=True):
                rows[name].append(priority)
            if day >= 355:
                pruned_on[day] = (await keeping.run("prune")).result["forgotten"]
        assert pruned_on == {355: 0, 360: 0, 365: 1_200, 370: 300, 375: 0}
        assert (await keeping.hidden(), rows["pinned"]) == ({*idle, *tried}, [3] * 75)
        fallen = [1 + rows["idle"].index(priority) for priority in (2, 1)]
        assert ([5 * run for run in fallen], rows["tried"][-1]) == ([25, 115], 2)
        assert set(await keeping.priorities(reused)) == {5}
        everything = await keeping.everything()
        assert (await keeping.run("priorities")).result == {"checked": 500, "raised": 0, "lowered": 0}
        assert (await keeping.run("prune")).result == {"checked": 500, "forgotten": 0}
        assert await keeping.everything() == everything


async def waiting_for_a_lock(keeping: Keeping, work: Any) -> Any:
    """Begin `work`, and return once it waits for a lock of somebody else's."""
    task = asyncio.create_task(work)

    async def waits() -> bool:
        async with keeping.database.system() as connection:
            return await connection.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')"
            )

    assert await eventually(waits, bool)
    return task

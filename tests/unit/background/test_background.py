"""Work beside something else, and together with its like."""

import asyncio

import pytest

from memplane_core.background import beside, together

pytestmark = pytest.mark.anyio


async def test_it_runs_meanwhile_and_not_after() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async with beside(beat(), name="beat"):
        while beats < 3:  # noqa: ASYNC110 - what is waited for is that it runs
            await asyncio.sleep(0)
    ended_at = beats
    await asyncio.sleep(0)
    assert beats == ended_at


async def test_one_that_takes_its_cancellation_for_something_else_ends_all_the_same() -> None:
    cancelled = 0

    async def stubborn() -> None:
        nonlocal cancelled
        while cancelled < 2:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled += 1

    async with asyncio.timeout(10):
        async with beside(stubborn(), name="stubborn"):
            await asyncio.sleep(0)
    assert cancelled == 2


async def test_one_that_failed_spoils_nothing() -> None:
    async def fails() -> None:
        raise RuntimeError("of its own")

    async with beside(fails(), name="fails"):
        await asyncio.sleep(0)


async def test_what_is_done_together_gives_its_results_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await together(after(turns) for turns in (5, 0, 3)) == [5, 0, 3]


async def test_of_what_is_done_together_none_goes_on_after_one_has_failed() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise KeyError("the first")

    with pytest.raises(KeyError, match="the first"):
        await together([_endless(ended, "one"), fails(), _endless(ended, "other")])
    assert sorted(ended) == ["one", "other"]


async def test_of_what_is_done_together_none_goes_on_after_it_was_cancelled_though_one_takes_longer_to_end() -> None:
    ended: list[str] = []
    doing = asyncio.create_task(together([_endless(ended, "quick"), _endless(ended, "slow", turns=5)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert ended == ["quick", "slow"]


async def _endless(ended: list[str], name: str, *, turns: int = 0) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(turns):
            await asyncio.sleep(0)
        ended.append(name)

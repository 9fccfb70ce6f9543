"""Work beside something else."""

import asyncio

import pytest

from memplane_core.background import beside

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

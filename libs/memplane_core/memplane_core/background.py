"""Work that goes on beside something else or together with its like, and ends with it."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

_AGAIN_S: Final = 0.5


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], *, name: str) -> AsyncGenerator[None]:
    """Run `work` for as long as the context lasts."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        await end(task)


async def end(task: asyncio.Task[Any]) -> None:
    """Return when a task has ended that is told to; how it ended is nobody's concern."""
    while not task.done():
        task.cancel()
        # A client may take the cancellation for the end of its own time, and the task go on.
        await asyncio.wait({task}, timeout=_AGAIN_S)
    if not task.cancelled():
        task.exception()


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all of `work` side by side; what it gives, in order. None of it goes on once this has ended.

    `asyncio.gather` leaves the others running where one fails, or where itself is cancelled and one ends sooner.

    Raises:
        Exception: That of the first to fail; the others are told to end then.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]

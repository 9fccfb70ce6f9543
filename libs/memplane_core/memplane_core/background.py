"""Work that goes on beside something else, and ends with it."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

_AGAIN_S: Final = 0.5


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], *, name: str) -> AsyncGenerator[None]:
    """Run `work` for as long as the context lasts."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        await end(task)


async def end(task: asyncio.Task[None]) -> None:
    """Return when a task has ended that is told to; how it ended is nobody's concern."""
    while not task.done():
        task.cancel()
        # A client may take the cancellation for the end of its own time, and the task go on.
        await asyncio.wait({task}, timeout=_AGAIN_S)
    if not task.cancelled():
        task.exception()

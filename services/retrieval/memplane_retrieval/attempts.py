"""Trying again where others were in the way."""

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Final

from memplane_core.storage import session
from memplane_core.storage.memory_writes import PlaceTakenError

_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.01


class ChangedMeanwhileError(Exception):
    """Somebody else changed what this transaction was prepared for: prepare again."""


def is_contention(error: Exception) -> bool:
    """Whether a transaction was undone only because others were in its way: it may be tried again."""
    return isinstance(error, ChangedMeanwhileError | PlaceTakenError) or session.is_contention(error)


async def attempts() -> AsyncGenerator[int]:
    """Numbers of tries from 0, with a random pause before each but the first, longer from try to try.

    Of writers that want the same row one gets through each time, so as many can meet as there are tries.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(random.uniform(0, _PAUSE_S * attempt))  # noqa: S311 - nobody guards a secret with it
        yield attempt

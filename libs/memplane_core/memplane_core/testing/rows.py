"""Rows and vectors to put into an index."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

import numpy as np

from memplane_core.domain.index import NEVER, FloatArray, IndexKey, IndexRow

T = TypeVar("T")


def unit_vectors(count: int, dim: int, *, seed: int = 0) -> FloatArray:
    """Random directions, the same for a seed: shape (count, dim), each of length 1."""
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def index_row(
    number: int,
    vector: FloatArray,
    *,
    rev: int = 1,
    user_id: str = "",
    agent_id: str = "",
    session_id: str = "",
    memory_type: str = "experience",
    occurred_at: int = 0,
    expires_at: int = NEVER,
) -> IndexRow:
    """A row whose memory is named by a number."""
    return IndexRow(
        key=IndexKey(UUID(int=number), rev, 0),
        vector=vector,
        user_id=user_id,
        agent_id=agent_id,
        session_id=session_id,
        memory_type=memory_type,
        occurred_at=occurred_at,
        expires_at=expires_at,
    )


async def eventually(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], bool], *, timeout_s: float = 60.0) -> T:
    """Ask until the answer is what is wanted, and return it; the last answer when that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not wanted(answer := await ask()) and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing here is told
        await asyncio.sleep(0.05)
    return answer

"""Taking turns, and what comes out of it."""

import math
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Turn = Callable[[int], Awaitable[object]]
"""One request of a subject; the number tells apart what must not be the same twice."""


async def interleaved(subjects: Mapping[str, Turn], turns: Iterable[int], *, warm_up: int) -> dict[str, list[float]]:
    """Seconds of each subject's requests: one of each a turn, and another one first from turn to turn.

    Args:
        subjects: By name.
        turns: Numbers that the subjects are given.
        warm_up: So many turns at the beginning do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    names = list(subjects)
    for place, turn in enumerate(turns):
        first = place % len(names)
        for name in (*names[first:], *names[:first]):
            began = time.perf_counter()
            await subjects[name](turn)
            took = time.perf_counter() - began
            if place >= warm_up:
                seconds[name].append(took)
    return seconds


def p50_ms(seconds: Sequence[float]) -> float:
    """The median, in milliseconds."""
    return statistics.median(seconds) * 1000


def p95_ms(seconds: Sequence[float]) -> float:
    """What 95 % do not exceed, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(len(ordered) * 0.95) - 1)] * 1000


class Stopwatch:
    """What one operation did, in order, with how long each part took."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, float]] = []

    def add(self, name: str, seconds: float) -> None:
        """Note a part that has ended."""
        self._parts.append((name, seconds))

    def take(self) -> list[tuple[str, float]]:
        """All parts since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def around(self, name: str, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """The same call, noted."""

        async def noted(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.perf_counter()
            try:
                return await call(*args, **kwargs)
            finally:
                self.add(name, time.perf_counter() - began)

        return noted

    def around_plain(self, name: str, call: Callable[P, T]) -> Callable[P, T]:
        """The same function that is not waited for, noted."""

        def noted(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.add(name, time.perf_counter() - began)

        return noted

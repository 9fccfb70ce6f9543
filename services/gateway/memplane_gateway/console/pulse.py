"""How much the gateway has had to do in the last quarter of an hour, for the charts."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from memplane_core.background import beside
from memplane_core.observability.metrics import REQUEST_SECONDS, REQUESTS
from memplane_gateway.console.rendering import ROOT

EVERY_S: Final = 5.0
_KEPT: Final = 180
_UNTOLD: Final = (ROOT, "/healthz", "/readyz", "unmatched")
"""Routes that nobody's use of the platform shows in."""


class Beat(msgspec.Struct, frozen=True):
    """Between two looks at the counters.

    Attributes:
        at: Epoch seconds.
        requests: Answered in a second, on average.
        failed: Those of them answered with a 5xx.
        mean_ms: Mean time of a request; None where there was none.
    """

    at: float
    requests: float
    failed: float
    mean_ms: float | None


class _Counted(msgspec.Struct, frozen=True):
    at: float
    requests: float
    failed: float
    seconds: float


class Pulse:
    """Looks at the counters of this process every few seconds, and keeps what it saw."""

    def __init__(self) -> None:
        self.beats: deque[Beat] = deque(maxlen=_KEPT)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look for as long as the context lasts."""
        async with beside(self._look(), name="count requests"):
            yield

    async def _look(self) -> None:
        before = _count()
        while True:
            await asyncio.sleep(EVERY_S)
            now = _count()
            span, requests = now.at - before.at, now.requests - before.requests
            if span > 0:
                mean = 1000 * (now.seconds - before.seconds) / requests if requests else None
                self.beats.append(Beat(now.at, requests / span, (now.failed - before.failed) / span, mean))
            before = now


def _count() -> _Counted:
    requests = failed = seconds = 0.0
    for sample in (its for metric in REQUESTS.collect() for its in metric.samples):
        if sample.name.endswith("_total") and _is_told(sample.labels):
            requests += sample.value
            failed += sample.value * sample.labels["status"].startswith("5")
    for sample in (its for metric in REQUEST_SECONDS.collect() for its in metric.samples):
        if sample.name.endswith("_sum") and _is_told(sample.labels):
            seconds += sample.value
    return _Counted(time.time(), requests, failed, seconds)


def _is_told(labels: dict[str, str]) -> bool:
    return labels["service"] == "gateway" and not labels["route"].startswith(_UNTOLD)

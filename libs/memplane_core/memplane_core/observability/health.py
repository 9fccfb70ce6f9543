"""What a process needs, looked at every few seconds: for whoever asks, and for the metrics that say the same."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import Gauge

from memplane_core.background import beside, together
from memplane_core.contracts.system import Health
from memplane_core.observability.logs import get_logger
from memplane_core.observability.tracebacks import describe

_log = get_logger(__name__)

Check = Callable[[], Awaitable[object]]
"""Raises where the part is not there."""

LOOK_EVERY_S: Final = 5.0

PART_UP: Final = Gauge(
    "memplane_part_up", "Whether a part answers the process that needs it.", labelnames=("service", "part")
)


class HealthChecks:
    """The parts of one process.

    Args:
        service: Its name.
        needed: What it can do nothing without.
        helpful: What it can do without, with less to offer.
        timeout_s: After which a check has failed.
    """

    def __init__(
        self,
        service: str,
        *,
        needed: Mapping[str, Check],
        helpful: Mapping[str, Check] | None = None,
        timeout_s: float = 2.0,
    ) -> None:
        self._service = service
        self._needed = dict(needed)
        self._helpful = dict(helpful or {})
        self._timeout_s = timeout_s
        self._away: set[str] = set()

    async def look(self) -> Health:
        """Run all checks side by side, and set the gauges to what is found.

        Why one failed is logged when it begins to: who may ask is everybody, and an error can name hosts and users.
        """
        checks = {**self._needed, **self._helpful}
        results = await together(self._one(part, check) for part, check in checks.items())
        parts = {part: "ok" if up else "unavailable" for part, up in zip(checks, results, strict=True)}
        if any(parts[part] != "ok" for part in self._needed):
            return Health("unavailable", parts)
        return Health("ok" if all(results) else "degraded", parts)

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Look every few seconds for as long as the context lasts."""
        async with beside(self._look_always(), name="look after the parts"):
            yield

    async def _look_always(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _one(self, part: str, check: Check) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                await check()
        except Exception as error:  # noqa: BLE001 - whatever a dependency raises, it is not ready
            if part not in self._away:
                self._away.add(part)
                _log.warning("a part is away", part=part, error=describe(error))
            PART_UP.labels(self._service, part).set(0)
            return False
        if part in self._away:
            self._away.remove(part)
            _log.info("a part is back", part=part)
        PART_UP.labels(self._service, part).set(1)
        return True

"""Puts together how the installation is, from those who can tell: each part is asked, or told of by who needs it."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final, Literal

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from memplane_core.clients.health import ServiceHealth
from memplane_core.clients.reports import ReportBoard
from memplane_core.contracts.system import (
    ExpiringKey,
    GenerationsView,
    Health,
    IndexView,
    JobsView,
    PartState,
    PartView,
    QueueView,
    SystemView,
    WorkerReport,
    WorkerView,
)
from memplane_core.domain.errors import Unavailable
from memplane_core.storage import installation
from memplane_core.storage.backlog import backlog
from memplane_core.storage.session import Database

VERSION: Final = version("memplane")

PARTS: Final = ("gateway", "retrieval", "embedding", "worker", "beat", "postgres", "index", "broker", "cache")
"""All there are, those that face callers first."""

_VITAL: Final = frozenset(("gateway", "retrieval", "postgres"))
"""Without one of these nothing is answered."""

_ADVICE: Final[Mapping[str, str]] = {
    "retrieval": "Look at the logs of retrieval; the gateway reaches it at MEMPLANE_ENDPOINTS__RETRIEVAL_URL.",
    "embedding": "Look at the logs of embedding: searches go by words alone, and new texts wait for their vectors.",
    "worker": "Start a worker, or look at its logs: nothing is indexed and no job runs without one.",
    "beat": "Start a beat, or look at its logs: lost messages and schedules wait for it. Needs a worker to be seen.",
    "postgres": "Bring Postgres back, or look at its connections: nothing is answered without it.",
    "index": "Bring Milvus back: searches are answered by Postgres meanwhile, writes are indexed afterwards.",
    "broker": "Bring back the Valkey of MEMPLANE_REDIS__BROKER_URL: no task is sent without it, and none is lost.",
    "cache": "Bring back the Valkey of MEMPLANE_REDIS__CACHE_URL: rate limits are not enforced without it.",
}
_TIMEOUT_S: Final = 3.0
_PAGE: Final = 10
_EXPIRING: Final = timedelta(days=7)


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """What Postgres knows."""

    index: IndexView
    generations: GenerationsView
    jobs: list[JobsView]
    expiring_keys: list[ExpiringKey]


class SystemDesk:
    """Answers in a few seconds, whatever is away.

    Args:
        database: Gives the open database, or raises Unavailable.
        cache: With the workers' reports. Decodes nothing.
        services: The other services by name.
    """

    def __init__(self, database: Callable[[], Database], cache: Redis, services: Mapping[str, ServiceHealth]) -> None:
        self._database = database
        self._cache = cache
        self._board = ReportBoard(cache)
        self._services = dict(services)

    async def close(self) -> None:
        """Give back the connections."""
        await asyncio.gather(*(service.close() for service in self._services.values()))

    async def look(self) -> SystemView:
        """How everything is now."""
        async with asyncio.TaskGroup() as group:
            counting = group.create_task(self._numbers())
            reading = group.create_task(self._reports())
            asking = {name: group.create_task(service.ask()) for name, service in self._services.items()}
        numbers, reports = counting.result(), reading.result()
        told = {name: task.result() for name, task in asking.items()}
        seen = _seen(told, reports=reports, postgres=numbers is not None)
        parts = [_part(name, seen[name]) for name in PARTS]
        now = time.time()
        return SystemView(
            status=_status(parts),
            version=VERSION,
            at=datetime.now(UTC),
            parts=parts,
            workers=[
                WorkerView(id=it.worker, seen_s=round(max(now - it.at, 0), 3), access_s=it.access_s)
                for it in reports or ()
            ],
            queues=[QueueView(name=name, waiting=n) for name, n in (reports[0].queues if reports else {}).items()],
            index=None if numbers is None else numbers.index,
            generations=None if numbers is None else numbers.generations,
            jobs=None if numbers is None else numbers.jobs,
            expiring_keys=None if numbers is None else numbers.expiring_keys,
        )

    async def _numbers(self) -> Numbers | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._database().system() as connection:
                behind = await installation.index_lag(connection, page=_PAGE)
                waiting = await backlog(connection)
                return Numbers(
                    index=IndexView(
                        lag_s=behind[0].oldest_s if behind else 0.0,
                        pending=waiting.pending,
                        failed=waiting.failed,
                        oldest_s=round(waiting.oldest_s, 3),
                        behind=behind,
                    ),
                    generations=await installation.generation_states(connection),
                    jobs=await installation.job_states(connection),
                    expiring_keys=await installation.keys_expiring(connection, within=_EXPIRING, page=_PAGE),
                )
        except (Unavailable, TimeoutError):
            return None

    async def _reports(self) -> Sequence[WorkerReport] | None:
        """The workers' reports; None where the cache is away."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._board.read()
        except (RedisError, OSError, TimeoutError):
            return None


def _seen(
    told: Mapping[str, Health | None], *, reports: Sequence[WorkerReport] | None, postgres: bool
) -> dict[str, dict[str, PartState]]:
    """Of each part, what everybody who can tell says of it."""
    seen: dict[str, dict[str, PartState]] = {name: {} for name in PARTS}
    seen["gateway"]["gateway"] = "ok"
    seen["postgres"]["gateway"] = _state(up=postgres)
    seen["cache"]["gateway"] = _state(up=reports is not None)
    for name, health in told.items():
        seen[name]["gateway"] = _state(up=health is not None and health.status != "unavailable")
        for part, state in (health.parts if health else {}).items():
            if part in seen:
                seen[part][name] = _state(up=state == "ok")
    if reports is not None:
        seen["worker"]["cache"] = _state(up=bool(reports))
    for part in ("postgres", "index", "broker", "cache", "beat") if reports else ():
        states = {report.parts.get(part, "unknown") for report in reports or ()}
        # One worker that reaches it is enough to say that it is there; that others do not, their logs say.
        seen[part]["worker"] = "ok" if "ok" in states else "unavailable" if "unavailable" in states else "unknown"
    return seen


def _state(*, up: bool) -> PartState:
    return "ok" if up else "unavailable"


def _part(name: str, seen_by: Mapping[str, PartState]) -> PartView:
    states = set(seen_by.values())
    status: PartState = "unavailable" if "unavailable" in states else "ok" if "ok" in states else "unknown"
    return PartView(
        name=name, status=status, seen_by=dict(seen_by), advice=None if status == "ok" else _ADVICE.get(name)
    )


def _status(parts: Sequence[PartView]) -> Literal["ok", "degraded", "unavailable"]:
    if any(part.status != "ok" for part in parts if part.name in _VITAL):
        return "unavailable"
    return "ok" if all(part.status == "ok" for part in parts) else "degraded"

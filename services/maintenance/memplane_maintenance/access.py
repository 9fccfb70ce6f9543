"""Moves recalls from the access stream into the usage of memories."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis

from memplane_core.contracts.jobs import ACCESS_STREAM
from memplane_core.domain.errors import Unavailable
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.logs import get_logger
from memplane_core.storage.session import Database, is_contention
from memplane_core.storage.usage import record_access
from memplane_maintenance import metrics
from memplane_maintenance.errors import origin

log = get_logger(__name__)

_Entry = tuple[bytes, Mapping[bytes, bytes]]

_PAGE: Final = 1_000
_TRIES: Final = 3
_LATEST: Final = 253_402_300_799.0
"""The end of the year 9999, in epoch seconds."""


class Recall(msgspec.Struct, frozen=True):
    """Memories of one tenant, recalled together at a moment in epoch seconds."""

    tenant: TenantId
    at: float
    memory_ids: list[UUID]


class FoldReport(msgspec.Struct, kw_only=True):
    """What a fold did: entries read, recalls that counted, and entries thrown away because they make no sense."""

    entries: int = 0
    counted: int = 0
    malformed: int = 0


class AccessFold:
    """Folds the oldest entries first and removes them once they are committed; doing it twice changes nothing.

    Args:
        database: Where usage is kept.
        client: Of the cache, which holds the stream: losing recalls harms nobody, a full broker would. Decodes nothing.
        pages: Most pages of 1,000 entries in one run.
    """

    def __init__(self, database: Database, client: Redis, *, pages: int = 20) -> None:
        self._database = database
        self._client = client
        self._pages = pages

    async def run(self) -> FoldReport:
        """Fold what the stream holds.

        Raises:
            Unavailable: Postgres is away; what was not folded stays.
        """
        report = FoldReport()
        for _ in range(self._pages):
            entries = cast("list[_Entry]", await self._client.xrange(ACCESS_STREAM, count=_PAGE))
            await self._fold(entries, report)
            if len(entries) < _PAGE:
                break
        return report

    async def _fold(self, entries: Sequence[_Entry], report: FoldReport) -> None:
        done: list[bytes] = []
        by_tenant: dict[TenantId, list[tuple[bytes, Recall]]] = defaultdict(list)
        for entry_id, fields in entries:
            recall = parse_recall(fields)
            if recall is None:
                report.malformed += 1
                done.append(entry_id)
                log.warning("access_malformed", entry=entry_id.decode(), fields=len(fields))
            else:
                by_tenant[recall.tenant].append((entry_id, recall))
        try:
            for tenant, recalls in by_tenant.items():
                report.counted += await self._record(tenant, [recall for _, recall in recalls])
                done.extend(entry_id for entry_id, _ in recalls)
        finally:
            report.entries += len(done)
            if done:
                await self._client.xdel(ACCESS_STREAM, *done)

    async def _record(self, tenant: TenantId, recalls: Sequence[Recall]) -> int:
        touches: dict[UUID, list[float]] = defaultdict(list)
        for recall in recalls:
            for memory_id in recall.memory_ids:
                touches[memory_id].append(recall.at)
        try:
            counted = await self._write_down(tenant, touches)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - statistics of one tenant must not hold up those of all others
            log.error(  # noqa: TRY400 - without the message
                "access_lost", tenant=str(tenant), error=type(error).__name__, where=origin(error)
            )
            metrics.ACCESS_FOLDED.labels("lost").inc(len(recalls))
            return 0
        metrics.ACCESS_FOLDED.labels("counted").inc(counted)
        metrics.ACCESS_FOLDED.labels("seen").inc(sum(len(times) for times in touches.values()))
        return counted

    async def _write_down(self, tenant: TenantId, touches: Mapping[UUID, Sequence[float]]) -> int:
        """Record touches; where writers of the same memories were in the way, once they are through."""
        for _ in range(_TRIES - 1):
            try:
                async with self._database.tenant(tenant) as connection:
                    return await record_access(tenant, connection, touches)
            except Exception as error:
                if not is_contention(error):
                    raise
        async with self._database.tenant(tenant) as connection:
            return await record_access(tenant, connection, touches)


def parse_recall(fields: Mapping[bytes, bytes]) -> Recall | None:
    """An entry of the stream, or None where it makes no sense."""
    try:
        tenant = TenantId(UUID(fields[b"tenant"].decode()))
        at = float(fields[b"at"])
        memory_ids = [UUID(text) for text in fields[b"ids"].decode().split(",") if text]
    except (KeyError, ValueError):
        return None
    if not (math.isfinite(at) and 0 <= at <= _LATEST):
        return None
    return Recall(tenant, at, memory_ids)

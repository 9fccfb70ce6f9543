"""Drains one tenant for a slice, and asks for the next slice if something is left."""

from contextlib import suppress
from typing import Final
from uuid import UUID

from celery import Celery
from redis.exceptions import RedisError

from memplane_core.clients.jobs import DrainSender, kick_key
from memplane_core.contracts.jobs import TASK_DRAIN
from memplane_core.domain.tenancy import TenantId
from memplane_maintenance.drain import DrainReport
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 180.0
"""A slice, the making of a collection, and what was begun at the slice's last moment."""


def register(app: Celery, runtime: Runtime, sender: DrainSender) -> None:
    """Give `app` the task."""

    async def slice_of(tenant: TenantId) -> DrainReport:
        # Before the outbox is read: a kick from now on may be about something that this slice does not see.
        with suppress(RedisError):
            await runtime.parts.broker.delete(kick_key(tenant))
        return await runtime.parts.drainer.drain(tenant)

    def drain(tenant: str) -> None:
        with reported(TASK_DRAIN, tenant=tenant):
            tenant_id = TenantId(UUID(tenant))
            report = runtime.run_async(lambda: slice_of(tenant_id), deadline_s=DEADLINE_S)
            if report.more:
                sender.send(tenant_id)

    app.task(drain, name=TASK_DRAIN)

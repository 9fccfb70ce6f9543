"""Drains one tenant for a slice, and asks for the next slice if something is left."""

from typing import Final
from uuid import UUID

from celery import Celery

from memplane_core.clients.jobs import DrainSender
from memplane_core.contracts.jobs import TASK_DRAIN
from memplane_core.domain.tenancy import TenantId
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 180.0
"""A slice, the making of a collection, and what was begun at the slice's last moment."""


def register(app: Celery, runtime: Runtime, sender: DrainSender) -> None:
    """Give `app` the task."""

    def drain(tenant: str) -> None:
        with reported(TASK_DRAIN, tenant=tenant):
            tenant_id = TenantId(UUID(tenant))
            report = runtime.run_async(lambda: runtime.parts.drainer.drain(tenant_id), deadline_s=DEADLINE_S)
            if report.more:
                sender.send(tenant_id)

    app.task(drain, name=TASK_DRAIN)

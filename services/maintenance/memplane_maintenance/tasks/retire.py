"""Drops a tenant's generations whose time is over, slice by slice."""

from typing import Final
from uuid import UUID

from celery import Celery

from memplane_core.clients.job_sender import JobSender
from memplane_core.contracts.jobs import TASK_RETIRE
from memplane_core.domain.tenancy import TenantId
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 180.0
"""A slice, and the dropping of a collection."""


def register(app: Celery, runtime: Runtime, sender: JobSender) -> None:
    """Give `app` the task."""

    def retire(tenant: str) -> None:
        with reported(TASK_RETIRE, tenant=tenant):
            tenant_id = TenantId(UUID(tenant))
            sender.retirement_came(tenant_id)
            # What is left the sweep finds again.
            runtime.run_async(lambda: runtime.parts.retirement.run(tenant_id), deadline_s=DEADLINE_S)

    app.task(retire, name=TASK_RETIRE)

"""Works on a job for a slice, and asks for the next slice if it can go on."""

from typing import Final
from uuid import UUID

from celery import Celery

from memplane_core.clients.job_sender import JobSender
from memplane_core.contracts.jobs import TASK_RUN_JOB
from memplane_core.domain.tenancy import TenantId
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 180.0
"""A slice, and what was begun at its last moment."""


def register(app: Celery, runtime: Runtime, sender: JobSender) -> None:
    """Give `app` the task."""

    def run_job(tenant: str, job: str) -> None:
        with reported(TASK_RUN_JOB, tenant=tenant, job=job):
            tenant_id, job_id = TenantId(UUID(tenant)), UUID(job)
            sender.job_came(job_id)
            report = runtime.run_async(lambda: runtime.parts.jobs.run(tenant_id, job_id), deadline_s=DEADLINE_S)
            if report.more:
                sender.run(tenant_id, job_id)

    app.task(run_job, name=TASK_RUN_JOB)

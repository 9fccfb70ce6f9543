"""Asks for a drain of every tenant that has something due, and for every job that nobody works on."""

from typing import Final

from celery import Celery

from memplane_core.clients.job_sender import JobSender
from memplane_core.clients.jobs import DrainSender
from memplane_core.contracts.jobs import TASK_SWEEP
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 60.0


def register(app: Celery, runtime: Runtime, sender: DrainSender, job_sender: JobSender) -> None:
    """Give `app` the task."""

    def sweep() -> None:
        with reported(TASK_SWEEP):
            report = runtime.run_async(runtime.parts.sweep.run, deadline_s=DEADLINE_S)
            for tenant in report.tenants:
                sender.send(tenant)
            for job in report.jobs:
                job_sender.run(job.tenant, job.id)
            for tenant in report.retiring:
                job_sender.retire(tenant)

    app.task(sweep, name=TASK_SWEEP)

"""Begins the jobs that tenants' policies ask for."""

from typing import Final

from celery import Celery

from memplane_core.contracts.jobs import TASK_SCHEDULE
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 60.0
"""Half a minute of looking, and the tenant that is looked at at its end."""


def register(app: Celery, runtime: Runtime) -> None:
    """Give `app` the task."""

    def schedule_jobs() -> None:
        with reported(TASK_SCHEDULE):
            # Whoever sweeps finds the jobs that it begins.
            runtime.run_async(runtime.parts.scheduler.run, deadline_s=DEADLINE_S)

    app.task(schedule_jobs, name=TASK_SCHEDULE)

"""Moves the access stream into the usage of memories."""

from typing import Final

from celery import Celery

from memplane_core.contracts.jobs import TASK_FOLD_ACCESS
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 60.0


def register(app: Celery, runtime: Runtime) -> None:
    """Give `app` the task."""

    def fold_access() -> None:
        with reported(TASK_FOLD_ACCESS):
            runtime.run_async(runtime.parts.access.run, deadline_s=DEADLINE_S)

    app.task(fold_access, name=TASK_FOLD_ACCESS)

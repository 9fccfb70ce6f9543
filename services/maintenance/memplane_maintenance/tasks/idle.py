"""Releases collections that nobody uses."""

from typing import Final

from celery import Celery

from memplane_core.contracts.jobs import TASK_RELEASE_IDLE
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 150.0
"""A minute of releasing, what was begun at its end, and the look at all collections."""


def register(app: Celery, runtime: Runtime) -> None:
    """Give `app` the task."""

    def release_idle() -> None:
        with reported(TASK_RELEASE_IDLE):
            runtime.run_async(runtime.parts.idle.run, deadline_s=DEADLINE_S)

    app.task(release_idle, name=TASK_RELEASE_IDLE)

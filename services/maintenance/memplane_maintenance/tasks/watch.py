"""Looks at all collections there are."""

from typing import Final

from celery import Celery

from memplane_core.contracts.jobs import TASK_WATCH_INDEX
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks.shell import reported

DEADLINE_S: Final = 150.0
"""Half a minute of looking, and the dropping of what was found at its end."""


def register(app: Celery, runtime: Runtime) -> None:
    """Give `app` the task."""

    def watch_index() -> None:
        with reported(TASK_WATCH_INDEX):
            # Whoever sweeps finds the jobs that it begins.
            runtime.run_async(runtime.parts.watch.run, deadline_s=DEADLINE_S)

    app.task(watch_index, name=TASK_WATCH_INDEX)

"""Celery tasks: one file a job, each a thin shell around work that knows nothing of Celery."""

from celery import Celery

from memplane_core.clients.jobs import DrainSender
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks import access, drain, sweep


def register(app: Celery, runtime: Runtime, sender: DrainSender) -> None:
    """Give the application its tasks."""
    drain.register(app, runtime, sender)
    sweep.register(app, runtime, sender)
    access.register(app, runtime)

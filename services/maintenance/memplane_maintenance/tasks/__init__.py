"""Celery tasks: one file a job, each a thin shell around work that knows nothing of Celery."""

from celery import Celery

from memplane_core.clients.job_sender import JobSender
from memplane_core.clients.jobs import DrainSender
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.tasks import access, drain, idle, jobs, retire, schedule, sweep, watch


def register(app: Celery, runtime: Runtime, sender: DrainSender, job_sender: JobSender) -> None:
    """Give the application its tasks."""
    drain.register(app, runtime, sender)
    sweep.register(app, runtime, sender, job_sender)
    jobs.register(app, runtime, job_sender)
    retire.register(app, runtime, job_sender)
    access.register(app, runtime)
    idle.register(app, runtime)
    watch.register(app, runtime)
    schedule.register(app, runtime)

"""Tells the index what a tenant's outbox holds. Knows nothing of Celery."""

from memplane_maintenance.drain.drainer import Drainer
from memplane_maintenance.drain.terms import DrainLimits, DrainReport

__all__ = ["DrainLimits", "DrainReport", "Drainer"]

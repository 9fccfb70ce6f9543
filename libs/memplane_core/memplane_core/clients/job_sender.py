"""Asking the workers for a slice of a job, or for a tenant's retirement of generations."""

from typing import Final
from uuid import UUID

import redis
from celery import Celery

from memplane_core.clients.jobs import send_once
from memplane_core.contracts.jobs import QUEUE_MAINTENANCE, SENT_PREFIX, TASK_RETIRE, TASK_RUN_JOB
from memplane_core.domain.tenancy import TenantId

_SENT_TTL_S: Final = 30
"""A message that was lost holds up the next one about the same thing for this long."""


class JobSender:
    """Sends one message about a thing at a time. Blocks.

    Args:
        app: On the broker that the workers listen to.
        client: Of the same broker.
    """

    def __init__(self, app: Celery, client: redis.Redis) -> None:
        self._app = app
        self._client = client

    def run(self, tenant: TenantId, job_id: UUID) -> bool:
        """Ask for a slice of a job; False where a message is on its way already.

        Raises:
            Exception: Whatever the broker's client raises where it cannot be reached; so do all methods.
        """
        return self._send(TASK_RUN_JOB, f"job:{job_id}", tenant=str(tenant), job=str(job_id))

    def retire(self, tenant: TenantId) -> bool:
        """Ask for a tenant's generations to be dropped; False where a message is on its way already."""
        return self._send(TASK_RETIRE, f"retire:{tenant}", tenant=str(tenant))

    def job_came(self, job_id: UUID) -> None:
        """The message about a job has arrived: the next one may be sent."""
        self._client.delete(f"{SENT_PREFIX}job:{job_id}")

    def retirement_came(self, tenant: TenantId) -> None:
        """The message about a tenant's retirement has arrived."""
        self._client.delete(f"{SENT_PREFIX}retire:{tenant}")

    def _send(self, task: str, about: str, **payload: str) -> bool:
        return send_once(
            self._app,
            self._client,
            key=SENT_PREFIX + about,
            ttl_s=_SENT_TTL_S,
            task=task,
            queue=QUEUE_MAINTENANCE,
            payload=payload,
        )

"""The Celery application of worker and beat: queues, routes and the beat's schedule."""

from typing import Any, Final

from celery import Celery
from kombu.entity import Queue

from memplane_core.clients.jobs import celery_app
from memplane_core.contracts.jobs import (
    BEAT_LOCK,
    BEAT_PREFIX,
    QUEUE_INDEX,
    QUEUE_MAINTENANCE,
    TASK_DRAIN,
    TASK_FOLD_ACCESS,
    TASK_RELEASE_IDLE,
    TASK_RETIRE,
    TASK_RUN_JOB,
    TASK_SCHEDULE,
    TASK_SWEEP,
    TASK_WATCH_INDEX,
)
from memplane_core.settings import RedisSettings

SWEEP_EVERY_S: Final = 5.0
FOLD_EVERY_S: Final = 2.0
RELEASE_EVERY_S: Final = 60.0
WATCH_EVERY_S: Final = 60.0
SCHEDULE_EVERY_S: Final = 60.0
_ANSWER_S: Final = 5.0
"""The worker is patient with a broker that is slow: losing the connection costs it more."""

_STALE_S: Final = 60
"""A beat's message that waited longer than this is thrown away: newer ones are behind it."""

_BEAT_LOOP_S: Final = 2.0
_BEAT_LOCK_S: Final = 15
"""After this long without a sign of the beat in charge another takes over."""


def create_app(settings: RedisSettings) -> Celery:
    """An application without tasks yet. The beat needs none: it sends them by name."""
    app = celery_app("memplane.maintenance", settings, answer_timeout_s=max(_ANSWER_S, settings.timeout_s))
    app.conf.update(
        task_queues=[Queue(QUEUE_INDEX), Queue(QUEUE_MAINTENANCE)],
        task_create_missing_queues=False,
        task_routes={
            TASK_DRAIN: {"queue": QUEUE_INDEX},
            TASK_SWEEP: {"queue": QUEUE_MAINTENANCE},
            TASK_FOLD_ACCESS: {"queue": QUEUE_MAINTENANCE},
            TASK_RUN_JOB: {"queue": QUEUE_MAINTENANCE},
            TASK_RETIRE: {"queue": QUEUE_MAINTENANCE},
            TASK_RELEASE_IDLE: {"queue": QUEUE_MAINTENANCE},
            TASK_WATCH_INDEX: {"queue": QUEUE_MAINTENANCE},
            TASK_SCHEDULE: {"queue": QUEUE_MAINTENANCE},
        },
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        # Threads cannot be cancelled, and every task is idempotent: it may as well end.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # There are no results, so there is nothing to clean up after.
        result_expires=None,
        beat_max_loop_interval=_BEAT_LOOP_S,
        beat_schedule={
            "sweep": _entry(TASK_SWEEP, SWEEP_EVERY_S),
            "fold-access": _entry(TASK_FOLD_ACCESS, FOLD_EVERY_S),
            "release-idle": _entry(TASK_RELEASE_IDLE, RELEASE_EVERY_S),
            "watch-index": _entry(TASK_WATCH_INDEX, WATCH_EVERY_S),
            "schedule-jobs": _entry(TASK_SCHEDULE, SCHEDULE_EVERY_S),
        },
        redbeat_redis_url=settings.broker_url.get_secret_value(),
        redbeat_redis_options={
            "socket_timeout": settings.timeout_s,
            "socket_connect_timeout": settings.timeout_s,
        },
        redbeat_key_prefix=BEAT_PREFIX,
        redbeat_lock_key=BEAT_LOCK,
        redbeat_lock_timeout=_BEAT_LOCK_S,
    )
    return app


def _entry(task: str, every_s: float) -> dict[str, Any]:
    return {"task": task, "schedule": every_s, "options": {"queue": QUEUE_MAINTENANCE, "expires": _STALE_S}}

"""What every task does alike: it is part of a trace, is measured, and ends in a log line, never in an exception."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import structlog
from celery import current_task
from opentelemetry.trace import SpanKind, Status, StatusCode
from redis.exceptions import RedisError

from memplane_core.domain.errors import Unavailable
from memplane_core.observability.logs import get_logger
from memplane_core.observability.tracing import TRACEPARENT, current_trace_id, entry_span
from memplane_maintenance import metrics
from memplane_maintenance.errors import origin

log = get_logger(__name__)


@contextmanager
def reported(task: str, **about: str) -> Generator[None]:
    """Do what is inside as part of the trace of whoever asked for it, and log what goes wrong.

    Nobody waits for the outcome, and the sweep or the next beat tries again.

    Args:
        task: Its name.
        about: What it is about, for all log lines inside.
    """
    began, outcome = time.perf_counter(), "done"
    with (
        entry_span(task, parent=_parent(), kind=SpanKind.CONSUMER) as span,
        structlog.contextvars.bound_contextvars(task=task, trace_id=current_trace_id(), **about),
    ):
        try:
            yield
        except (Unavailable, RedisError, TimeoutError) as error:
            outcome = "postponed"
            log.warning("task_postponed", error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - Celery would log the message, which may quote a memory
            outcome = "failed"
            log.error("task_failed", error=type(error).__name__, where=origin(error))  # noqa: TRY400 - the same
        if outcome != "done":
            span.set_status(Status(StatusCode.ERROR, outcome))
        metrics.TASK_SECONDS.labels(task, outcome).observe(time.perf_counter() - began)


def _parent() -> str | None:
    """The `traceparent` that came with the task's message."""
    running: Any = current_task
    headers: Any = running.request.headers if running else None
    return str(headers[TRACEPARENT]) if headers and TRACEPARENT in headers else None

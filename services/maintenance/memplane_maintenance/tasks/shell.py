"""What every task does alike: it ends in a log line, never in an exception."""

from collections.abc import Generator
from contextlib import contextmanager

from redis.exceptions import RedisError

from memplane_core.domain.errors import Unavailable
from memplane_core.observability.logs import get_logger
from memplane_maintenance.errors import origin

log = get_logger(__name__)


@contextmanager
def reported(task: str, **about: str) -> Generator[None]:
    """Log what goes wrong inside. Nobody waits for the outcome, and the sweep or the next beat tries again.

    Args:
        task: Its name.
        about: What it was about, for the log.
    """
    try:
        yield
    except (Unavailable, RedisError, TimeoutError) as error:
        log.warning("task_postponed", task=task, error=type(error).__name__, **about)
    except Exception as error:  # noqa: BLE001 - Celery would log the message, which may quote a memory
        log.error(  # noqa: TRY400 - without the message
            "task_failed", task=task, error=type(error).__name__, where=origin(error), **about
        )

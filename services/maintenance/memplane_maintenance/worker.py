"""The worker: takes tasks from its queues until it is told to end."""

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final, cast

import redis
from celery import signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from memplane_core.clients.job_sender import JobSender
from memplane_core.clients.jobs import DrainSender, close_app, redis_client
from memplane_core.contracts.system import Health
from memplane_core.observability.certificates import watch_certificates
from memplane_core.observability.logs import configure_logs, get_logger
from memplane_core.observability.tracing import configure_traces
from memplane_maintenance import tasks
from memplane_maintenance.celery_app import create_app
from memplane_maintenance.health import HealthServer, Probe
from memplane_maintenance.runtime import Runtime
from memplane_maintenance.settings import MaintenanceSettings

log = get_logger(__name__)

EX_CONFIG: Final = 78
_ALIVE_S: Final = 5.0
_READY_S: Final = 4.0


def run_worker(settings: MaintenanceSettings) -> int:
    """Work until TERM, which lets the batches under way finish; returns the exit code."""
    # Of what Celery 6 will do with tasks when the broker is lost, and of running pickled tasks as root: ours are JSON.
    for known in (CPendingDeprecationWarning, SecurityWarning):
        warnings.simplefilter("ignore", known)
    _configure_logs(settings)
    refuse_evicting_broker(redis_client(settings.redis))
    runtime = Runtime(settings)
    try:
        runtime.start()
    except ValueError as error:
        raise _misconfigured(f"MaintenanceSettings: {error}") from error
    app = create_app(settings.redis)
    client = redis_client(settings.redis)
    tasks.register(app, runtime, DrainSender(app, client), JobSender(app, client))
    consuming = Flag()
    _on(signals.setup_logging, _leave_logs_alone)
    _on(signals.worker_ready, consuming.set)
    _on(signals.worker_shutting_down, runtime.wind_down)
    probe = Probe(
        alive=lambda: runtime.answers(within_s=_ALIVE_S),
        ready=lambda: check_health(runtime, consuming=bool(consuming)),
    )
    HealthServer(probe).serve(settings.server.host, settings.server.port, settings.server.metrics_port)
    worker = cast("Any", app).Worker(
        pool="threads",
        concurrency=settings.worker.concurrency,
        queues=list(settings.worker.queues),
        loglevel=settings.log.level.upper(),
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    try:
        worker.start()
    finally:
        runtime.close()
        close_app(app)
    return int(worker.exitcode or 0)


def _leave_logs_alone() -> None:
    """Celery sets up no logs of its own where somebody listens to this signal."""


def _configure_logs(settings: MaintenanceSettings) -> None:
    configure_logs(settings.log, service="worker")
    configure_traces(settings.trace, service="worker")
    watch_certificates(settings)
    # A line for each of several tasks a second says nothing; theirs say what they did.
    for chatty in ("celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Flag:
    """Set once."""

    def __init__(self) -> None:
        self._value = False

    def set(self) -> None:
        """Make it true."""
        self._value = True

    def __bool__(self) -> bool:
        return self._value


def _on(celery_signal: Any, act: Callable[[], None]) -> None:
    def receive(**about: object) -> None:
        del about
        act()

    celery_signal.connect(receive, weak=False)


def check_health(runtime: Runtime, *, consuming: bool) -> Health:
    """The worker's parts, and whether it takes tasks yet."""
    health = runtime.run_async(runtime.parts.health.look, deadline_s=_READY_S)
    parts = {"consumer": "ok" if consuming else "unavailable", **health.parts}
    return Health(health.status if consuming else "unavailable", parts)


def refuse_evicting_broker(client: redis.Redis) -> None:
    """Stop the process with a sentence if the broker throws away what it holds when memory is short.

    One that cannot be reached yet, or does not tell, is taken as it is.
    """
    try:
        memory = client.info("memory")
    except redis.RedisError as error:
        log.warning("broker_not_checked", error=type(error).__name__)
        return
    finally:
        client.close()
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and memory.get("maxmemory", 0):
        raise _misconfigured(
            f"MEMPLANE_REDIS__BROKER_URL: this server evicts keys ({policy}) and would lose tasks:"
            " set maxmemory-policy to noeviction, or name another server"
        )


def _misconfigured(sentence: str) -> SystemExit:
    print(sentence, file=sys.stderr)  # noqa: T201 - where every other fault of the configuration is told
    return SystemExit(EX_CONFIG)

"""Jobs as they are sent to the workers: through the broker, never waiting for it, and lost without harm."""

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
import redis
import structlog
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from memplane_core.contracts.jobs import KICK_PREFIX, QUEUE_INDEX, TASK_DRAIN
from memplane_core.domain.tenancy import TenantId
from memplane_core.observability.tracing import TRACEPARENT, traceparent
from memplane_core.settings import RedisSettings

log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

VISIBILITY_TIMEOUT_S: Final = 600
"""After this long without an answer a task is given to another worker: longer than any task takes."""

KICK_TTL_S: Final = 10
"""A kick whose message was lost holds up the next ones for this long."""

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


def celery_app(name: str, settings: RedisSettings, *, answer_timeout_s: float) -> Celery:
    """A Celery application on our broker, without tasks; no command waits longer than `answer_timeout_s`."""
    app = Celery(name, set_as_current=False)
    app.conf.update(
        broker_url=settings.broker_url.get_secret_value(),
        # RedBeat reads it too.
        broker_use_ssl=settings.tls_options(settings.broker_url) or None,
        broker_connection_timeout=settings.timeout_s,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": settings.timeout_s,
            "socket_timeout": answer_timeout_s,
            "socket_keepalive": True,
            "priority_steps": [0],
            # Of publishing: one try. The consumer's own retries are settings of the worker.
            "max_retries": 0,
        },
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUE_INDEX,
        enable_utc=True,
        timezone="UTC",
    )
    return app


def redis_client(settings: RedisSettings) -> redis.Redis:
    """A client of the broker that gives up after one try of `timeout_s`; safe to share between threads."""
    return redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        settings.broker_url.get_secret_value(),
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=3,
        **settings.tls_options(settings.broker_url),
    )


class DrainSender:
    """Asks the workers to drain a tenant's outbox, unless a request for that tenant waits already. Blocks.

    Args:
        app: On the broker that the workers listen to.
        client: Of the same broker.
    """

    def __init__(self, app: Celery, client: redis.Redis) -> None:
        self._app = app
        self._client = client

    def send(self, tenant: TenantId, *, trace: str = "") -> bool:
        """Send it, as part of `trace` or else of the current one; False where one is on its way already.

        Raises:
            Exception: Whatever the broker's client raises where it cannot be reached.
        """
        return send_once(
            self._app,
            self._client,
            key=kick_key(tenant),
            ttl_s=KICK_TTL_S,
            task=TASK_DRAIN,
            queue=QUEUE_INDEX,
            payload={"tenant": str(tenant)},
            trace=trace,
        )


def send_once(
    app: Celery,
    client: redis.Redis,
    *,
    key: str,
    ttl_s: int,
    task: str,
    queue: str,
    payload: Mapping[str, str],
    trace: str = "",
) -> bool:
    """Send a task unless `key` says that one is on its way; False then. Blocks.

    Args:
        app: On the broker that the workers listen to.
        client: Of the same broker.
        key: What holds back the next one, until whoever gets the message deletes it.
        ttl_s: For how long, where the message is lost.
        task: Its name.
        queue: Where to.
        payload: Arguments of the task.
        trace: The `traceparent` that it is part of; the current one where it is empty.

    Raises:
        Exception: Whatever the broker's client raises where it cannot be reached.
    """
    if not client.set(key, "1", nx=True, ex=ttl_s):
        return False
    try:
        headers = {TRACEPARENT: told} if (told := trace or traceparent()) else {}
        app.send_task(task, kwargs=dict(payload), queue=queue, retry=False, ignore_result=True, headers=headers)
    except BaseException:
        with contextlib.suppress(redis.RedisError):
            client.delete(key)
        raise
    return True


class _Asked(msgspec.Struct, frozen=True):
    """A kick that waits to be sent, and the trace that it is part of."""

    tenant: TenantId
    trace: str


class CeleryKicker:
    """The `Kicker` of services: a thread of its own sends, so that neither the caller nor its event loop ever waits.

    Kicks of one tenant that come while one is being sent are one. While the broker is away kicks are dropped, after a
    try every few seconds.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._waiting: dict[TenantId, str] = {}  # and the trace of whoever asked first
        self._changed = threading.Condition()
        self._open = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send. Connects to nothing by itself."""
        if self._thread is not None:
            return
        self._open = True
        self._thread = threading.Thread(target=self._run, name="kicker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; what waits is dropped. Takes no longer than one try to reach the broker."""
        with self._changed:
            self._open = False
            self._waiting.clear()
            self._changed.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def kick(self, tenant: TenantId) -> None:
        """Ask for a drain of `tenant` soon. Returns at once and never raises; before `start` it does nothing."""
        with self._changed:
            if self._open:
                self._waiting.setdefault(tenant, traceparent())
                self._changed.notify()

    def _run(self) -> None:
        app = celery_app("memplane.kicker", self._settings, answer_timeout_s=self._settings.timeout_s)
        client = redis_client(self._settings)
        sender = DrainSender(app, client)
        pause_s, resume_at = 0.0, 0.0
        try:
            while (asked := self._next()) is not None:
                if time.monotonic() < resume_at:
                    continue
                try:
                    sender.send(asked.tenant, trace=asked.trace)
                    pause_s = 0.0
                except Exception as error:  # noqa: BLE001 - the sweep finds the work whatever went wrong here
                    pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, pause_s * 2))
                    resume_at = time.monotonic() + pause_s
                    log.warning("kick_lost", error=type(error).__name__, next_try_s=pause_s)
        finally:
            client.close()
            close_app(app)

    def _next(self) -> "_Asked | None":
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            if not self._open:
                return None
            tenant = next(iter(self._waiting))
            return _Asked(tenant, self._waiting.pop(tenant))


def kick_key(tenant: TenantId) -> str:
    """The broker's key that says that a drain of `tenant` is on its way; the drain removes it before it looks."""
    return f"{KICK_PREFIX}{tenant}"


def close_app(app: Celery) -> None:
    """Give back an application's connections."""
    cast("Any", app).close()

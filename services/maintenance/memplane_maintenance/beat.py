"""The beat: sends the periodic tasks. Any number may run; one is in charge, the others take over when it is gone."""

import logging
import signal
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

from celery import Celery
from celery.beat import Service
from redbeat import schedulers

from memplane_core.clients.jobs import close_app
from memplane_core.contracts.system import Health
from memplane_core.observability.certificates import watch_certificates
from memplane_core.observability.health import PART_UP
from memplane_core.observability.logs import configure_logs, get_logger
from memplane_maintenance.celery_app import create_app
from memplane_maintenance.errors import origin
from memplane_maintenance.health import HealthServer, Probe
from memplane_maintenance.metrics import BEAT_IN_CHARGE, BEAT_TICK
from memplane_maintenance.settings import BeatSettings

if TYPE_CHECKING:
    from types import FrameType

log = get_logger(__name__)

_LONGEST_QUEUE: Final = 100
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0
_STALLED_S: Final = 60.0


class Pulse:
    """How the beat is doing.

    Attributes:
        state: `away` while the broker cannot be reached, `standby` while another beat is in charge.
    """

    def __init__(self) -> None:
        self.state: Literal["away", "standby", "in charge"] = "away"
        self._ticked_at = time.monotonic()

    def turn(self, state: Literal["away", "standby", "in charge"]) -> None:
        """It is in another state."""
        self.state = state
        PART_UP.labels("beat", "broker").set(state != "away")
        BEAT_IN_CHARGE.set(state == "in charge")

    def tick(self) -> None:
        """It has just been through its schedule."""
        self.turn("in charge")
        self._ticked_at = time.monotonic()
        BEAT_TICK.set(time.time())

    def alive(self) -> bool:
        """False where it is in charge and has not looked at its schedule for a minute."""
        return self.state != "in charge" or time.monotonic() - self._ticked_at < _STALLED_S

    def ready(self) -> Health:
        """Its one part."""
        up = self.state != "away"
        return Health("ok", {"broker": "ok"}) if up else Health("unavailable", {"broker": "unavailable"})


_pulse = Pulse()


class BoundedScheduler(schedulers.RedBeatScheduler):
    """RedBeat, but where no worker takes them it stops adding tasks: they do not get more useful in numbers."""

    def setup_schedule(self) -> None:
        """Write the schedule to the broker."""
        super().setup_schedule()
        _pulse.turn("standby")

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; returns the seconds until the next look."""
        wait_s = cast("float", super().tick(*args, **kwargs))
        _pulse.tick()
        return wait_s

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Send an entry's task, unless its queue is long already."""
        queue: str = entry.options.get("queue", self.app.conf.task_default_queue)
        client: Any = cast("Any", schedulers).get_redis(cast("Any", self).app)
        if client.llen(queue) >= _LONGEST_QUEUE:
            log.warning("queue_is_long", queue=queue, task=entry.task)
            return None
        return cast("Any", super()).apply_async(entry, *args, **kwargs)


def run_beat(settings: BeatSettings) -> int:
    """Send periodic tasks until TERM; returns the exit code. While the broker is away it tries again and again."""
    configure_logs(settings.log, service="beat")
    watch_certificates(settings)
    logging.getLogger("celery.beat").setLevel(logging.WARNING)  # else a line for every task sent
    health = HealthServer(Probe(alive=_pulse.alive, ready=_pulse.ready))
    health.serve(settings.server.host, settings.server.port, settings.server.metrics_port)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    pause_s = _FIRST_PAUSE_S
    while True:
        # All anew: RedBeat's connection and its lock do not outlive the broker.
        app = create_app(settings.redis)
        began = time.monotonic()
        try:
            _serve(app)
        except SystemExit:
            return 0
        except Exception as error:  # noqa: BLE001 - RedBeat raises whatever its lock and its client do
            _pulse.turn("away")
            if time.monotonic() - began > _STALLED_S:
                pause_s = _FIRST_PAUSE_S
            log.warning("beat_interrupted", error=type(error).__name__, where=origin(error), next_try_s=pause_s)
        else:
            return 0
        finally:
            close_app(app)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _serve(app: Celery) -> None:
    """Wait until no other beat is in charge, then send what is due until told to end."""
    app.set_current()
    app.finalize()
    Service(app, scheduler_cls=BoundedScheduler).start()


def _end(number: int, frame: "FrameType | None") -> NoReturn:
    del number, frame
    raise SystemExit(0)

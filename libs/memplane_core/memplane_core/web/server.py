"""Serves an application: one process a pod, one worker in it."""

import resource
import time
from typing import Any, Final

from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer

from memplane_core.observability.logs import configure_logs
from memplane_core.settings import Settings
from memplane_core.web.draining import begin_drain, ignore_drain

_LOGS: Final[dict[str, Any]] = {"loggers": {"_granian": {"propagate": True}}, "handlers": {}}
"""What the server says goes where everything goes."""

_HEADER_BYTES: Final = 64 * 1024
_OTHER_FILES: Final = 512
"""What a process has open besides its connections, amply."""

_TOLD_S: Final = 10
"""For how long a worker is told to end, once a second."""


def serve(target: str, settings: Settings) -> None:
    """Serve the application factory named `module:function` until TERM or Ctrl-C, then finish what is under way.

    With `drain_s`, it goes on for so long after the signal, without being ready.
    """
    ignore_drain()
    _allow_files(settings.server.max_connections + _OTHER_FILES)
    configure_logs(settings.log, service=target.partition(".")[0].removeprefix("memplane_"))
    server = _Server(
        target,
        address=settings.server.host,
        port=settings.server.port,
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        factory=True,
        workers=1,
        backlog=1024,
        backpressure=settings.server.max_connections,
        # HTTP/2 in the clear is spoken by nobody who calls us, and lets one connection ask for hundreds of answers.
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(
            header_read_timeout=round(settings.server.header_timeout_s * 1000), max_buffer_size=_HEADER_BYTES
        ),
        log_level=LogLevels.warning,
        log_dictconfig=_LOGS,
        websockets=False,
        # Now and then a worker whose stores and callers die with it is not told by the server that it may end.
        workers_kill_timeout=15 - _TOLD_S,
    )
    server.drain_s = settings.server.drain_s
    server.serve()


class _Server(MPServer):
    drain_s: float = 0.0

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """Begin to stop, once: a signal that interrupts this in its middle would wait for what this has locked.

        A parent of many threads that is killed sends one with each of them.
        """
        if not self.interrupt_signal:
            super().signal_handler_interrupt(*args, **kwargs)

    def _serve_loop(self, *args: Any, **kwargs: Any) -> None:
        super()._serve_loop(*args, **kwargs)
        if self.interrupt_signal and self.drain_s:
            begin_drain([worker.inner.pid for worker in self.wrks])
            time.sleep(self.drain_s)

    def _stop_workers(self) -> None:
        """End the one that answers; a signal between the event loops of its start and of its work would be lost."""
        [worker] = self.wrks
        for _ in range(_TOLD_S):
            worker.terminate()
            worker.join(1)
            if not worker.is_alive():
                break
        super()._stop_workers()


def _allow_files(count: int) -> None:
    """Let this process have `count` files open, or as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

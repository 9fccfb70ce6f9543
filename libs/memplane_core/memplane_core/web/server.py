"""Serves an application: one process a pod, one worker in it."""

from granian import Granian
from granian.constants import Interfaces, Loops
from granian.log import LogLevels

from memplane_core.settings import Settings


def serve(target: str, settings: Settings) -> None:
    """Serve the application factory named `module:function` until TERM or Ctrl-C, then finish what is under way."""
    Granian(
        target,
        address=settings.server.host,
        port=settings.server.port,
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        factory=True,
        workers=1,
        backlog=1024,
        log_level=LogLevels.warning,
        websockets=False,
        # A worker that had to be shot would leave its requests unanswered; the drain above it is bounded instead.
        workers_kill_timeout=30,
    ).serve()

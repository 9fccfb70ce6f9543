"""`/healthz`, `/readyz` and `/metrics` of a process that serves nothing else."""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
import prometheus_client

from memplane_core.contracts.system import Health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_JSON: Final = ("Content-Type", "application/json")


class Probe(msgspec.Struct, frozen=True):
    """How a process is asked about itself.

    Attributes:
        alive: Whether it works at all; asks nobody else.
        ready: How its parts are.
    """

    alive: Callable[[], bool]
    ready: Callable[[], Health]


class HealthServer:
    """Answers from threads, on each of the given ports, until the process ends."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._metrics = cast("WSGIApplication", prometheus_client.make_wsgi_app())

    def serve(self, host: str, *ports: int) -> None:
        """Listen on every port but 0. Raises OSError where one is taken."""
        for port in {port for port in ports if port}:
            server = make_server(host, port, self._answer, server_class=_Server, handler_class=_Handler)
            threading.Thread(target=server.serve_forever, name=f"health-{port}", daemon=True).start()

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return self._metrics(environ, start_response)
            case "/healthz":
                alive = self._probe.alive()
                health = Health("ok" if alive else "unavailable", {})
            case "/readyz":
                health = self._probe.ready()
            case _:
                start_response("404 Not Found", [_JSON])
                return [b'{"status": 404, "title": "Not found"}']
        start_response("503 Service Unavailable" if health.status == "unavailable" else "200 OK", [_JSON])
        return [msgspec.json.encode(health)]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Probes come every few seconds: they are not worth a line each."""

"""A collector of traces that keeps what it is sent."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from memplane_core.testing.started import Started


class ReceivedSpan(msgspec.Struct, frozen=True):
    """A span as it was sent; ids are hex digits, `parent` is empty for the first of a trace."""

    trace: str
    id: str
    parent: str
    service: str
    name: str
    values: str


class TraceCollector(Started):
    """Takes OTLP over HTTP on loopback.

    Attributes:
        spans: All that came.
        url: What `MEMPLANE_TRACE__ENDPOINT` takes.
    """

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Begin to take them."""
        threading.Thread(target=self._server.serve_forever, name="collector", daemon=True).start()

    def dispose(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()

    def of(self, trace: str) -> list[ReceivedSpan]:
        """The spans of one trace."""
        return [span for span in self.spans if span.trace == trace]

    def _take(self, body: bytes) -> None:
        request: Any = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            self.spans += [
                ReceivedSpan(
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    service=names["service.name"],
                    name=span.name,
                    values=f"{span.attributes} {span.events} {span.status}",
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Nobody reads it."""

        return Handler

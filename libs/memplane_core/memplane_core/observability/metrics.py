"""Metrics of every process, served on a port of their own."""

from typing import Final

from prometheus_client import Counter, Histogram, start_http_server

REQUESTS: Final = Counter(
    "memplane_http_requests_total", "Requests answered.", labelnames=("service", "method", "route", "status")
)
REQUEST_SECONDS: Final = Histogram(
    "memplane_http_request_seconds",
    "Time from the request's first byte to the answer's last.",
    labelnames=("service", "method", "route"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)


def serve_metrics(host: str, port: int) -> None:
    """Answer `/metrics` on `port` from a thread; port 0 switches metrics off."""
    if port:
        start_http_server(port, addr=host)

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
PROBLEMS: Final = Counter("memplane_http_problems_total", "Problems told, by code.", labelnames=("service", "code"))
UPSTREAM_SECONDS: Final = Histogram(
    "memplane_upstream_call_seconds",
    "Time of calls to other services, repeats included.",
    labelnames=("service", "upstream", "outcome"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
POSTGRES_SECONDS: Final = Histogram(
    "memplane_postgres_statement_seconds",
    "Time of statements, from sending one to the whole of its answer.",
    labelnames=("service", "statement", "outcome"),
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
POSTGRES_WAIT_SECONDS: Final = Histogram(
    "memplane_postgres_connection_wait_seconds",
    "Time until a connection of the pool was free.",
    labelnames=("service",),
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15),
)
MILVUS_SECONDS: Final = Histogram(
    "memplane_milvus_call_seconds",
    "Time of calls to Milvus.",
    labelnames=("service", "call", "outcome"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
)


def serve_metrics(host: str, port: int) -> None:
    """Answer `/metrics` on `port` from a thread; port 0 switches metrics off."""
    if port:
        start_http_server(port, addr=host)

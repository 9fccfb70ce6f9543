"""Metrics of the embedding service."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

TEXTS: Final = Counter(
    "memplane_embedding_texts_total", "Texts asked for, by where their vectors came from.", ("model", "lane", "source")
)

REQUEST_TEXTS: Final = Histogram(
    "memplane_embedding_request_texts",
    "Texts of a request.",
    ("lane",),
    buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1000),
)

COMPUTE_SECONDS: Final = Histogram(
    "memplane_embedding_compute_seconds",
    "Time until all texts of a request that no cache had were embedded, waiting for a thread included.",
    ("model", "lane"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

RERANKED: Final = Counter(
    "memplane_embedding_reranked_texts_total", "Texts scored against a query by a cross-encoder.", ("model",)
)

WAITING: Final = Gauge(
    "memplane_embedding_waiting_jobs", "Windows of texts, and pairs to rerank, that wait for a thread.", ("lane",)
)

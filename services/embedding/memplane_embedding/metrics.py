"""Metrics of the embedding service."""

from typing import Final

from prometheus_client import Counter, Gauge

TEXTS: Final = Counter(
    "memplane_embedding_texts_total", "Texts asked for, by where their vectors came from.", ("model", "lane", "source")
)

RERANKED: Final = Counter(
    "memplane_embedding_reranked_texts_total", "Texts scored against a query by a cross-encoder.", ("model",)
)

WAITING: Final = Gauge(
    "memplane_embedding_waiting_jobs", "Windows of texts, and pairs to rerank, that wait for a thread.", ("lane",)
)

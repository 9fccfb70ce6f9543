"""What the retrieval service measures of itself."""

from typing import Final

from prometheus_client import Counter, Histogram

CANDIDATE_CACHE: Final = Counter(
    "memplane_retrieval_candidate_cache_total",
    "Searches by what the cache of index answers had: a hit, nothing, or an answer that was no longer good.",
    labelnames=("outcome",),
)
POOL_SIZE: Final = Histogram(
    "memplane_retrieval_pool_candidates",
    "Memories that were ranked for a search.",
    buckets=(0, 1, 10, 50, 100, 200, 400, 800, 1600, 6400, 16_384, 32_768),
)
NOMINATED: Final = Histogram(
    "memplane_retrieval_nominated_memories",
    "Memories that each arm of a search named; `fresh` are those that the index may not show yet.",
    labelnames=("arm",),
    buckets=(0, 1, 10, 50, 100, 200, 400, 800, 1000, 1600, 6400, 16_384),
)
DEGRADED: Final = Counter(
    "memplane_retrieval_degraded_total", "Searches answered without something.", labelnames=("part",)
)

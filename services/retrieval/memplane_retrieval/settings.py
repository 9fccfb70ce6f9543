"""Settings of the retrieval service."""

from pydantic import Field

from memplane_core.contracts.embedding import MAX_RERANK_TEXTS
from memplane_core.settings import (
    EndpointSettings,
    LimitSettings,
    MilvusSettings,
    PostgresSettings,
    RedisSettings,
    Section,
    Settings,
    TrustSettings,
)


class WriteSettings(Section):
    """How much of a write is embedded before it is answered.

    `sync_embed_bytes` is what two workers embed in about two seconds; a larger batch is stored, answered 202 and
    embedded by the drain.
    """

    sync_embed_bytes: int = Field(default=48_000, ge=0)
    embed_timeout_s: float = Field(default=5.0, gt=0)
    wait_index_s: float = Field(default=30.0, gt=0)


class SearchSettings(Section):
    """`touch_floor`: relevance from which a recalled memory counts as used.

    `rerank_candidates` of the best are read by the reranker where a search asks for it: 6 to 10 ms of a core each.
    """

    embed_timeout_s: float = Field(default=5.0, gt=0)
    generation_cache_s: float = Field(default=5.0, gt=0)
    touch_floor: float = Field(default=0.25, ge=0, le=1)
    rerank_candidates: int = Field(default=30, ge=1, le=MAX_RERANK_TEXTS)
    rerank_timeout_s: float = Field(default=5.0, gt=0)


class RetrievalSettings(Settings):
    """Everything the retrieval service reads at start."""

    postgres: PostgresSettings
    redis: RedisSettings
    milvus: MilvusSettings
    trust: TrustSettings
    endpoints: EndpointSettings = EndpointSettings()
    limits: LimitSettings = LimitSettings()
    write: WriteSettings = WriteSettings()
    search: SearchSettings = SearchSettings()

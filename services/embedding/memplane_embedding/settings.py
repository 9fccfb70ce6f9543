"""Settings of the embedding service."""

import os
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from memplane_core.contracts.embedding import MAX_RERANK_TEXTS
from memplane_core.settings import (
    RedisSettings,
    Section,
    Settings,
    TrustSettings,
    default_models_dir,
)
from memplane_embedding.models.catalog import DEFAULT_MODEL


class UpstreamSettings(Section):
    """A model behind a URL that speaks OpenAI's embeddings API.

    Attributes:
        name: As it is called here.
        url: Up to and without `/embeddings`, as `https://host/v1`.
        model: As the upstream calls it; `name` where it is empty.
        dimensions: Ask the upstream to shorten its vectors to `dim`.
        max_tokens: Longest text that the upstream takes whole; longer ones are split by a cautious estimate.
    """

    name: str = Field(min_length=1)
    url: str = Field(pattern=r"^https?://")
    model: str = ""
    key: SecretStr = SecretStr("")
    dim: int = Field(ge=1)
    dimensions: bool = False
    max_tokens: int = Field(default=512, ge=16)
    query_prefix: str = ""
    passage_prefix: str = ""
    span: float = Field(default=0.4, gt=0)
    anchor_low: float = 0.2
    anchor_high: float = 0.8
    anchor_cjk: float = 0.0
    multilingual: bool = True
    batch_size: int = Field(default=64, ge=1)
    concurrency: int = Field(default=4, ge=1)
    timeout_s: float = Field(default=30.0, gt=0)


class EmbeddingSection(Section):
    """Which models are served, and how much at once.

    Attributes:
        models_dir: Every folder in it that has a manifest is a model or a reranker.
        folders: More model folders, from anywhere.
        default_model: Loaded at start; the others when first asked for.
        reranker: The cross-encoder that scores texts against a query, say `ms-marco-MiniLM-L-12-v2`; "" has none.
        rerank_limit: Most pairs that may wait to be reranked before callers are told to come back.
        workers: Threads that compute; each uses one core.
        lane_limit: Most texts that may wait in a lane before callers are told to come back.
        max_texts: Most texts of one request.
        max_text_bytes: Longest text, head included, in UTF-8.
        request_timeout_s: Longest that a request may take, however patient its caller is.
        cache_bytes: Of vectors kept in this process.
        shared_cache_ttl_s: How long vectors are kept in Valkey, where there is one.
        shared_cache_timeout_s: Longest wait for it.
    """

    models_dir: Path = Field(default_factory=default_models_dir)
    folders: list[Path] = Field(default_factory=list[Path])
    upstreams: list[UpstreamSettings] = Field(default_factory=list[UpstreamSettings])
    default_model: str = DEFAULT_MODEL
    reranker: str = ""
    rerank_limit: int = Field(default=200, ge=MAX_RERANK_TEXTS)
    workers: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    lane_limit: int = Field(default=20_000, ge=1)
    max_texts: int = Field(default=2048, ge=1)
    max_text_bytes: int = Field(default=128 * 1024, ge=1024)
    request_timeout_s: float = Field(default=60.0, gt=0)
    cache_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    shared_cache_ttl_s: int = Field(default=24 * 3600, ge=1)
    shared_cache_timeout_s: float = Field(default=0.1, gt=0)

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.lane_limit < self.max_texts:
            raise ValueError("lane_limit must be at least max_texts, or the largest requests could never be taken")
        return self


class EmbeddingSettings(Settings):
    """Everything the embedding service reads."""

    trust: TrustSettings
    redis: RedisSettings | None = None
    embedding: EmbeddingSection = Field(default_factory=EmbeddingSection)

"""Settings of the worker, and the few that the beat needs."""

from typing import Final

from pydantic import Field, field_validator

from memplane_core.clients.chat import LlmSettings
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

LEAST_IDLE_S: Final = 300.0


class WorkerSettings(Section):
    """How the worker goes about it.

    `lease_s` must be longer than a call to the index can take effect, which is twice `MEMPLANE_MILVUS__TIMEOUT_S`.
    `fresh_s` is for how long Postgres still answers for rows that the index has just taken. A collection that nobody
    has searched or written for `idle_release_s` leaves Milvus's memory until it is used again; 0 keeps all there. Each
    tenant is reconciled with its index every `reconcile_every_s`; 0 leaves that to those who ask for it.
    """

    concurrency: int = Field(default=4, ge=1)
    lease_s: float = Field(default=30.0, gt=0)
    slice_s: float = Field(default=10.0, gt=0)
    fresh_s: float = Field(default=10.0, ge=0)
    embed_timeout_s: float = Field(default=30.0, gt=0)
    idle_release_s: float = Field(default=1800.0, ge=0)
    reconcile_every_s: float = Field(default=86_400.0, ge=0)

    @field_validator("idle_release_s")
    @classmethod
    def _longer_than_reports(cls, value: float) -> float:
        if 0 < value < LEAST_IDLE_S:
            raise ValueError(f"must be 0 or at least {LEAST_IDLE_S:g}: uses are told once a minute")
        return value


class MaintenanceSettings(Settings):
    """Everything the worker reads."""

    postgres: PostgresSettings
    redis: RedisSettings
    milvus: MilvusSettings
    trust: TrustSettings
    endpoints: EndpointSettings = EndpointSettings()
    limits: LimitSettings = LimitSettings()
    worker: WorkerSettings = WorkerSettings()
    llm: LlmSettings | None = None


class BeatSettings(Settings):
    """Everything the beat reads."""

    redis: RedisSettings

"""Settings of the worker, and the few that the beat needs."""

from pydantic import Field

from memplane_core.settings import (
    EndpointSettings,
    MilvusSettings,
    PostgresSettings,
    RedisSettings,
    Section,
    Settings,
    TrustSettings,
)


class WorkerSettings(Section):
    """How the worker goes about it.

    `lease_s` must be longer than a call to the index can take effect, which is twice `MEMPLANE_MILVUS__TIMEOUT_S`.
    `fresh_s` is for how long Postgres still answers for rows that the index has just taken.
    """

    concurrency: int = Field(default=4, ge=1)
    lease_s: float = Field(default=30.0, gt=0)
    slice_s: float = Field(default=10.0, gt=0)
    fresh_s: float = Field(default=10.0, ge=0)
    embed_timeout_s: float = Field(default=30.0, gt=0)


class MaintenanceSettings(Settings):
    """Everything the worker reads."""

    postgres: PostgresSettings
    redis: RedisSettings
    milvus: MilvusSettings
    trust: TrustSettings
    endpoints: EndpointSettings = EndpointSettings()
    worker: WorkerSettings = WorkerSettings()


class BeatSettings(Settings):
    """Everything the beat reads."""

    redis: RedisSettings

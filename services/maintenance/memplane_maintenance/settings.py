"""Settings of the worker, and the few that the beat needs."""

from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator

from memplane_core.clients.chat import LlmSettings
from memplane_core.contracts.jobs import QUEUE_INDEX, QUEUE_MAINTENANCE
from memplane_core.settings import (
    EndpointSettings,
    LimitSettings,
    MilvusSettings,
    PostgresSettings,
    RedisSettings,
    Section,
    Settings,
    SslMode,
    TlsSettings,
    TrustSettings,
)

LEAST_IDLE_S: Final = 300.0

Queue = Literal["index", "maintenance"]


class WorkerSettings(Section):
    """How the worker goes about it.

    `queues` are those that it takes tasks from; together the workers of an installation must take all of them.
    `lease_s` must be longer than a call to the index can take effect, which is twice `MEMPLANE_MILVUS__TIMEOUT_S`.
    `fresh_s` is for how long Postgres still answers for rows that the index has just taken. A collection that nobody
    has searched or written for `idle_release_s` leaves Milvus's memory until it is used again; 0 keeps all there. Each
    tenant is reconciled with its index every `reconcile_every_s`; 0 leaves that to those who ask for it.
    """

    queues: Annotated[tuple[Queue, ...], Field(min_length=1)] = (QUEUE_INDEX, QUEUE_MAINTENANCE)
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


class OwnerSettings(TlsSettings):
    """The connection of the role that owns the schema, and the role that the services run as."""

    owner_url: SecretStr
    app_role: str = "memplane_app"
    ssl_mode: SslMode | None = None


class PatienceSettings(Section):
    """`lock_timeout_s` bounds each wait for a lock: whoever comes behind a migration that waits has to wait as well."""

    lock_timeout_s: float = Field(default=10.0, gt=0)


class MigrationSettings(Settings):
    """Everything a migration reads."""

    postgres: OwnerSettings
    migration: PatienceSettings = PatienceSettings()

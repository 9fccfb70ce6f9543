"""Settings, read once at start from the environment and from files in a secrets folder.

Every name is `MEMPLANE_<SECTION>__<FIELD>`, the same in every service; a service reads only the sections it uses, so
that a missing secret stops just the service that needs it.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A group of settings. Immutable; an unknown name is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerSettings(Section):
    """Where a service listens. `metrics_port` 0 switches metrics off."""

    host: str = "127.0.0.1"
    port: Port = 8080
    metrics_port: Port = 0


class LogSettings(Section):
    """`json` for machines, `console` for a person at a terminal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class PostgresSettings(Section):
    """The runtime role's connection. `owner_url` is used by migrations alone.

    `acquire_timeout_s` bounds the wait for a free connection. `prepared_statements` is switched off behind a
    transaction-mode pooler that does not track them.
    """

    url: SecretStr
    owner_url: SecretStr | None = None
    app_role: str = "memplane_app"
    pool_min: int = Field(default=0, ge=0)
    pool_max: int = Field(default=10, ge=1)
    statement_timeout_s: float = Field(default=10.0, gt=0)
    connect_timeout_s: float = Field(default=5.0, gt=0)
    acquire_timeout_s: float = Field(default=15.0, gt=0)
    prepared_statements: bool = True


class RedisSettings(Section):
    """`broker_url` must never evict; `cache_url` may. One server can be both on a laptop."""

    broker_url: SecretStr
    cache_url: SecretStr
    timeout_s: float = Field(default=1.0, gt=0)


class MilvusSettings(Section):
    """How to reach Milvus, and how collections made from now on are indexed."""

    uri: str
    token: SecretStr = SecretStr("")
    database: str = ""
    timeout_s: float = Field(default=10.0, gt=0)
    load_timeout_s: float = Field(default=60.0, gt=0)
    index_type: Literal["HNSW", "IVF_FLAT", "AUTOINDEX"] = "HNSW"
    index_params: dict[str, int] = Field(default_factory=lambda: {"M": 16, "efConstruction": 200})
    search_ef: int = Field(default=128, ge=64)


class TrustSettings(Section):
    """The secret that signs the tokens by which services know on whose behalf they are called."""

    internal_secret: SecretStr = Field(min_length=32)


class EndpointSettings(Section):
    """Where the other services are."""

    embedding_url: str = "http://127.0.0.1:8081"
    retrieval_url: str = "http://127.0.0.1:8082"


class Settings(BaseSettings):
    """Base of each service's settings."""

    model_config = SettingsConfigDict(
        env_prefix="MEMPLANE_",
        env_nested_delimiter="__",
        extra="ignore",
        frozen=True,
        secrets_dir=os.environ.get("MEMPLANE_SECRETS_DIR") or None,
    )

    server: ServerSettings = ServerSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def load(cls) -> Self:
        """Read the settings, or stop the process with one line for each that is missing or wrong."""
        try:
            return cls()
        except ValidationError as error:
            print(f"{cls.__name__}: the configuration is not complete:", file=sys.stderr)
            for item in error.errors(include_input=False, include_url=False):
                name = "MEMPLANE_" + "__".join(str(part).upper() for part in item["loc"])
                print(f"  {name}: {item['msg']}", file=sys.stderr)
            raise SystemExit(78) from None


def default_models_dir() -> Path:
    """Where built embedding models are looked for unless told otherwise."""
    return Path(os.environ.get("MEMPLANE_MODELS_DIR", "build/models"))

"""Settings, read once at start from the environment and from files in a secrets folder.

Every name is `MEMPLANE_<SECTION>__<FIELD>`, the same in every service; a service reads only the sections it uses, so
that a missing secret stops just the service that needs it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NestedSecretsSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from memplane_core.domain.indexing import MAX_EF, MAX_LISTS, IndexType, complete_index_params

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


class IndexSettings(Section):
    """How collections made from now on are indexed. One that is there changes by a reindex.

    `index_params` are `M` and `efConstruction` of `HNSW`, `nlist` of `IVF_FLAT`, none of `AUTOINDEX`; what is left out
    has its default.
    """

    index_type: IndexType = "HNSW"
    index_params: dict[str, int] = Field(default_factory=dict, validate_default=True)

    @field_validator("index_params")
    @classmethod
    def _complete(cls, params: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        index_type = info.data.get("index_type")
        return params if index_type is None else complete_index_params(index_type, params)


class MilvusSettings(IndexSettings):
    """How to reach Milvus and to search it.

    The names are pymilvus's own. `token` is `user:password` or an API key. An `https` server is checked against the
    system's authorities, or against `server_pem_path`: its certificate, or that of the authority that signed it. For
    TLS on both sides give all of `ca_pem_path`, `client_pem_path` and `client_key_path` instead. `server_name` is the
    name in the certificate where it is not the host's.

    `timeout_s` bounds a call, `load_timeout_s` the making or loading of a collection. `search_ef` is how far HNSW
    looks, `search_nprobe` how many lists of IVF_FLAT.
    """

    uri: str
    token: SecretStr = SecretStr("")
    database: str = ""
    server_pem_path: str = ""
    ca_pem_path: str = ""
    client_pem_path: str = ""
    client_key_path: str = ""
    server_name: str = ""
    timeout_s: float = Field(default=10.0, gt=0)
    load_timeout_s: float = Field(default=60.0, gt=0)
    search_ef: int = Field(default=128, ge=64, le=MAX_EF)
    search_nprobe: int = Field(default=32, ge=1, le=MAX_LISTS)

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        if uri.startswith("unix:"):
            return uri
        parts = urlsplit(uri)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                "a Milvus is named like http://host:19530 or https://host:19530; "
                "a file of Milvus Lite cannot be shared by services: run its server"
            )
        if parts.username or parts.password:
            raise ValueError("user and password belong into MEMPLANE_MILVUS__TOKEN, as user:password")
        return uri

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        mutual = (self.ca_pem_path, self.client_pem_path, self.client_key_path)
        paths = [path for path in (self.server_pem_path, *mutual) if path]
        if (paths or self.server_name) and not self.uri.startswith("https:"):
            raise ValueError("certificates are given, and the uri does not begin with https")
        if any(mutual) and (self.server_pem_path or not all(mutual)):
            raise ValueError(
                "TLS on both sides takes all of ca_pem_path, client_pem_path and client_key_path, not server_pem_path"
            )
        for path in paths:
            if not os.access(path, os.R_OK):
                raise ValueError(f"{path!r} cannot be read")
        return self


def newest_first(listed: Sequence[SecretStr], single: SecretStr | None) -> tuple[str, ...]:
    """The secrets of a list, and behind them one that was named alone; each once."""
    every = (*listed, *(() if single is None else (single,)))
    return tuple(dict.fromkeys(secret.get_secret_value() for secret in every))


class TrustSettings(Section):
    """The secrets that sign the tokens by which services know on whose behalf they are called.

    Tokens are signed with the newest and verified with any. A new one is brought in without downtime by putting it
    behind the old one in every service, then before it in every service, then taking the old one out: a service that
    has not been restarted must know what the others sign with.

    Attributes:
        internal_secrets: Newest first.
        internal_secret: The same as a list of one, and the oldest beside a list.
    """

    internal_secrets: tuple[Annotated[SecretStr, Field(min_length=32)], ...] = ()
    internal_secret: Annotated[SecretStr, Field(min_length=32)] | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """All of them, newest first."""
        return newest_first(self.internal_secrets, self.internal_secret)

    @model_validator(mode="after")
    def _check_secrets(self) -> Self:
        if not self.secrets:
            raise ValueError("internal_secret or internal_secrets is required")
        return self


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
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings passes them by name
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment, then files named as its variables are, in upper or lower case."""
        folder = os.environ.get("MEMPLANE_SECRETS_DIR")
        files = (NestedSecretsSettingsSource(file_secret_settings, secrets_dir=folder),) if folder else ()
        return init_settings, env_settings, *files

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

"""Settings, read once at start from the environment and from files in a secrets folder.

Every name is `MEMPLANE_<SECTION>__<FIELD>`, the same in every service; a service reads only the sections it uses, so
that a missing secret stops just the service that needs it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
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
    SettingsError,
)

from memplane_core.contracts.limits import MAX_BATCH, MAX_BODY_BYTES, EffectiveLimits, Rate
from memplane_core.domain.indexing import MAX_EF, MAX_LISTS, IndexType, complete_index_params
from memplane_core.section import Section
from memplane_core.trace_settings import TraceSettings

Port = Annotated[int, Field(ge=0, le=65535)]


class ServerSettings(Section):
    """Where a service listens, and how patient it is with those who call it.

    Attributes:
        metrics_port: 0 switches metrics off.
        header_timeout_s: Longest that a connection may take for the headers of a request, and be idle between two.
        patience_s: Longest that a service waits for the body of a request, or for its answer to be read, with a second
            more for each `min_bytes_s` bytes of it.
        max_connections: Those beyond wait until one ends.
        drain_s: Seconds between being told to end and ending, in which `/readyz` answers 503 and all else is answered:
            as long as a balancer may take to notice.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    metrics_port: Port = 0
    header_timeout_s: float = Field(default=30.0, ge=0.1)
    patience_s: float = Field(default=30.0, gt=0)
    min_bytes_s: int = Field(default=4096, ge=1)
    max_connections: int = Field(default=4096, ge=1)
    drain_s: float = Field(default=0.0, ge=0, le=300)


class LogSettings(Section):
    """`json` for machines, `console` for a person at a terminal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class TlsSettings(Section):
    """Files of a section's TLS, in PEM; empty is none.

    Attributes:
        ca_pem_path: The authority that signed the server's certificate; the system's authorities where it is empty.
        client_pem_path: The certificate that this side shows, with its chain.
        client_key_path: Its key, where that is not in the same file.
    """

    ca_pem_path: str = ""
    client_pem_path: str = ""
    client_key_path: str = ""

    @property
    def has_tls_files(self) -> bool:
        """Whether any is given."""
        return bool(self.ca_pem_path or self.client_pem_path or self.client_key_path)

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.client_key_path and not self.client_pem_path:
            raise ValueError("client_key_path is given without client_pem_path")
        for path in (self.ca_pem_path, self.client_pem_path, self.client_key_path):
            if path and not os.access(path, os.R_OK):
                raise ValueError(f"{path!r} cannot be read")
        return self


SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


class PostgresSettings(TlsSettings):
    """The runtime role's connection. `owner_url` is used by migrations alone.

    `ssl_mode` is libpq's: use `verify-full` over any network that is not yours alone. Where it is left out certificates
    that are given mean `verify-full`, and without them the URL's `sslmode` counts, which is `prefer` by itself.
    `acquire_timeout_s` bounds the wait for a free connection. `prepared_statements` is switched off behind a
    transaction-mode pooler that does not track them.
    """

    url: SecretStr
    owner_url: SecretStr | None = None
    ssl_mode: SslMode | None = None
    app_role: str = "memplane_app"
    pool_min: int = Field(default=0, ge=0)
    pool_max: int = Field(default=10, ge=1)
    statement_timeout_s: float = Field(default=10.0, gt=0)
    connect_timeout_s: float = Field(default=5.0, gt=0)
    acquire_timeout_s: float = Field(default=15.0, gt=0)
    prepared_statements: bool = True

    @field_validator("url", "owner_url")
    @classmethod
    def _check_urls(cls, url: SecretStr | None) -> SecretStr | None:
        return None if url is None else _check_url(url, "postgresql", "postgres")

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.ca_pem_path and self.ssl_mode not in (None, "verify-ca", "verify-full"):
            raise ValueError("ca_pem_path is used by the ssl_mode verify-ca or verify-full alone")
        if self.client_pem_path and self.ssl_mode in ("disable", "allow", "prefer"):
            raise ValueError("client_pem_path needs the ssl_mode require, verify-ca or verify-full")
        return self


class RedisTlsSettings(TlsSettings):
    """`rediss://` is TLS: the server's certificate and name are checked, against `ca_pem_path` where it is given."""

    @field_validator("broker_url", "cache_url", check_fields=False)
    @classmethod
    def _check_urls(cls, url: SecretStr) -> SecretStr:
        return _check_url(url, "redis", "rediss", "unix")

    def tls_options(self, url: SecretStr) -> dict[str, Any]:
        """What redis-py and Celery are told besides the URL; nothing where it is not TLS."""
        if not url.get_secret_value().startswith("rediss:"):
            return {}
        files = {
            "ssl_ca_certs": self.ca_pem_path,
            "ssl_certfile": self.client_pem_path,
            "ssl_keyfile": self.client_key_path,
        }
        return {"ssl_cert_reqs": "required"} | {name: path for name, path in files.items() if path}


class RedisSettings(RedisTlsSettings):
    """`broker_url` must never evict; `cache_url` may. One server can be both on a laptop."""

    broker_url: SecretStr
    cache_url: SecretStr
    timeout_s: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _check_scheme(self) -> Self:
        urls = (self.broker_url, self.cache_url)
        if self.has_tls_files and not any(url.get_secret_value().startswith("rediss:") for url in urls):
            raise ValueError("certificates are given, and no URL begins with rediss")
        return self


class CacheSettings(RedisTlsSettings):
    """What a service reads of the Redis section that has no business with the broker."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    cache_url: SecretStr


class RateSettings(Section):
    """At most `requests` in any span of `seconds`."""

    requests: int = Field(ge=1, le=100_000)
    seconds: int = Field(default=1, ge=1, le=3600)


class LimitSettings(Section):
    """Limits of tenants that have none of their own; None is no limit.

    Rates are for all keys of a tenant together: `write` of requests that change something, `search` of those that
    read, `admin` of the tenant's own administration. `tokens_a_day` are of new texts and queries, from midnight UTC.
    `stored_memories` are active ones and observations that sessions hold. `body_bytes` and `batch_items` can only be
    less than what a route takes anyway.

    While Valkey does not answer within `timeout_s` no rate is enforced; quotas are kept by Postgres.
    """

    write: RateSettings | None = None
    search: RateSettings | None = None
    admin: RateSettings | None = None
    tokens_a_day: int | None = Field(default=None, ge=0)
    stored_memories: int | None = Field(default=None, ge=0)
    body_bytes: int | None = Field(default=None, ge=1024)
    batch_items: int | None = Field(default=None, ge=1)
    timeout_s: float = Field(default=0.5, gt=0)

    def effective(self) -> EffectiveLimits:
        """The same as it is used."""
        return EffectiveLimits(
            write=_rate(self.write),
            search=_rate(self.search),
            admin=_rate(self.admin),
            tokens_a_day=self.tokens_a_day,
            stored_memories=self.stored_memories,
            body_bytes=min(self.body_bytes or MAX_BODY_BYTES, MAX_BODY_BYTES),
            batch_items=min(self.batch_items or MAX_BATCH, MAX_BATCH),
        )


def _rate(settings: RateSettings | None) -> Rate | None:
    return None if settings is None else Rate(requests=settings.requests, seconds=settings.seconds)


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


def _check_url(url: SecretStr, *schemes: str) -> SecretStr:
    """Raise ValueError, without what is in it, where `url` is none of these schemes."""
    try:
        parts = urlsplit(url.get_secret_value())
        hosts = parts.netloc.rpartition("@")[2].split(",")  # Postgres may have several
        known = parts.scheme in schemes and all((urlsplit(f"//{host}").port or 0) >= 0 for host in hosts)
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"is no address like {schemes[0]}://user:password@host/name")
    return url


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
        hide_input_in_errors=True,
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
    trace: TraceSettings = TraceSettings()

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
        except SettingsError as error:  # its message names the variable, what it comes from quotes the value
            print(f"{cls.__name__}: {error}", file=sys.stderr)
            raise SystemExit(78) from None


def default_models_dir() -> Path:
    """Where built embedding models are looked for unless told otherwise."""
    return Path(os.environ.get("MEMPLANE_MODELS_DIR", "build/models"))

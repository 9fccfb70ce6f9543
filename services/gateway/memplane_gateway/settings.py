"""Settings of the gateway."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, IPvAnyNetwork, SecretStr, model_validator

from memplane_core.clients.chat import LlmSettings
from memplane_core.settings import (
    CacheSettings,
    EndpointSettings,
    IndexSettings,
    LimitSettings,
    PostgresSettings,
    Section,
    Settings,
    TrustSettings,
    newest_first,
)

Secret = Annotated[SecretStr, Field(min_length=32)]
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[A-Za-z0-9.\[\]:-]+)$")]


class IndexDefaults(IndexSettings):
    """How the collection of a new tenant will be indexed. The gateway itself never speaks to Milvus."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class DoorSettings(Section):
    """What the public door alone needs.

    Attributes:
        key_peppers: Go into the digest of every API key, newest first. The newest makes new keys, the others keep those
            valid that they made: put a new one in front, and take the old ones out once their keys are rotated.
        key_pepper: The same as a list of one, and the oldest beside a list.
        admin_key: Opens `/admin`.
        ops_key: Opens what can be read below `/admin`, and nothing else.
        request_timeout_s: Deadline of a request, the services behind the gateway included.
        key_cache_s: How long a key is trusted without asking the database, and so how late a revocation may be felt: a
            second later, for a body that takes so long to come.
        trusted_proxies: Networks of proxies in front of the gateway, whose `X-Forwarded-For` tells the audit where a
            request comes from; from anybody else it is ignored.
        cors_origins: Origins whose pages may call from a browser, like `https://app.example`, or `*` for all. None
            may unless it is set. Cookies are never asked for: a page needs a key like everybody else.
        docs: Whether `/docs` and `/openapi.json` are served.
        console: Whether `/console` is served.
    """

    key_peppers: tuple[Secret, ...] = ()
    key_pepper: Secret | None = None
    admin_key: Secret
    ops_key: Secret | None = None
    request_timeout_s: float = Field(default=30.0, gt=0)
    key_cache_s: float = Field(default=10.0, ge=0, le=29)
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    cors_origins: tuple[Origin, ...] = ()
    docs: bool = True
    console: bool = True

    @property
    def peppers(self) -> tuple[str, ...]:
        """All of them, newest first."""
        return newest_first(self.key_peppers, self.key_pepper)

    @model_validator(mode="after")
    def _check_secrets(self) -> Self:
        if not self.peppers:
            raise ValueError("key_pepper or key_peppers is required")
        if self.ops_key == self.admin_key:
            raise ValueError("ops_key must be another than admin_key")
        return self


class GatewaySettings(Settings):
    """All that the gateway reads."""

    postgres: PostgresSettings
    trust: TrustSettings
    redis: CacheSettings
    gateway: DoorSettings
    limits: LimitSettings = LimitSettings()
    endpoints: EndpointSettings = EndpointSettings()
    milvus: IndexDefaults = IndexDefaults()
    llm: LlmSettings | None = None

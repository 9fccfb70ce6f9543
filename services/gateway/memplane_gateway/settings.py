"""Settings of the gateway."""

from typing import Annotated

from pydantic import ConfigDict, Field, SecretStr

from memplane_core.settings import (
    EndpointSettings,
    IndexSettings,
    PostgresSettings,
    Section,
    Settings,
    TrustSettings,
)

Secret = Annotated[SecretStr, Field(min_length=32)]


class IndexDefaults(IndexSettings):
    """How the collection of a new tenant will be indexed. The gateway itself never speaks to Milvus."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class DoorSettings(Section):
    """What the public door alone needs.

    Attributes:
        key_pepper: Goes into the digest of every API key; whoever changes it makes all keys invalid.
        admin_key: Opens `/admin`.
        request_timeout_s: Deadline of a request, the services behind the gateway included.
        key_cache_s: How long a key is trusted without asking the database, and so how late a revocation may be felt.
        docs: Whether `/docs` and `/openapi.json` are served.
    """

    key_pepper: Secret
    admin_key: Secret
    request_timeout_s: float = Field(default=30.0, gt=0)
    key_cache_s: float = Field(default=10.0, ge=0, le=30)
    docs: bool = True


class GatewaySettings(Settings):
    """All that the gateway reads."""

    postgres: PostgresSettings
    trust: TrustSettings
    gateway: DoorSettings
    endpoints: EndpointSettings = EndpointSettings()
    milvus: IndexDefaults = IndexDefaults()

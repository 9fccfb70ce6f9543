"""Settings of traces."""

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from memplane_core.section import Section


class TraceSettings(Section):
    """Where spans are sent, and of how many requests. Trace ids are in logs and answers whatever is set here.

    Attributes:
        endpoint: Of an OpenTelemetry collector that takes OTLP over HTTP, like `http://collector:4318`; the path
            `/v1/traces` is added where it has none. Empty sends nothing.
        sample_ratio: Share of the requests that come from outside, and of the workers' own rounds, that are traced.
            Whatever a traced request leads to is traced with it.
        headers: Sent with the spans, for a collector that asks who is there.
        ca_pem_path: The authority that signed the collector's certificate; the system's where it is empty.
    """

    endpoint: str = ""
    sample_ratio: float = Field(default=0.05, ge=0, le=1)
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    ca_pem_path: str = ""

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if not endpoint:
            return endpoint
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a collector is named like http://collector:4318")
        if parts.username or parts.password:
            raise ValueError("secrets belong into MEMPLANE_TRACE__HEADERS")
        return endpoint.rstrip("/") if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"

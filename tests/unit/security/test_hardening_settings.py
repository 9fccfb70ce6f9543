"""Settings that are wrong: said at the start, by name, and without what is in them."""

import pytest
from pydantic import ValidationError

from memplane_core.settings import PostgresSettings, RedisSettings, ServerSettings
from memplane_gateway.settings import GatewaySettings

SECRET = "zqxjkvb"


@pytest.mark.parametrize(
    "url",
    [f"postgresql://u:{SECRET}@[::1/x", f"postgresql://u:{SECRET}@h:{SECRET}/x", f"mysql://u:{SECRET}@h/x", SECRET, ""],
)
def test_an_address_that_is_none_is_refused_without_being_quoted(url: str) -> None:
    for kind, field in ((PostgresSettings, "url"), (RedisSettings, "cache_url")):
        given = {"url": "postgresql://u@h/x", "broker_url": "redis://h/0", "cache_url": "redis://h/1", field: url}
        names = kind.model_fields.keys() & given.keys()
        with pytest.raises(ValidationError) as caught:
            kind.model_validate({name: given[name] for name in names})
        assert [error["loc"] for error in caught.value.errors()] == [(field,)]
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://u:p%40@h1:5432,h2:5433/x", "postgres://u@[::1]:5432/x", "postgresql:///x?host=/run"]
)
def test_every_way_to_write_the_address_of_postgres_is_taken(url: str) -> None:
    assert PostgresSettings.model_validate({"url": url}).url.get_secret_value() == url


def test_patience_has_to_be_some() -> None:
    for field in ("header_timeout_s", "patience_s", "min_bytes_s", "max_connections"):
        with pytest.raises(ValidationError):
            ServerSettings.model_validate({field: 0})


@pytest.mark.parametrize(
    ("origin", "taken"),
    [
        ("https://app.example", True),
        ("http://localhost:3000", True),
        ("*", True),
        ("https://*.example", False),
        ("https://app.example/path", False),
        ("app.example", False),
        ("null", False),
        ("https://app.example\n", False),
    ],
)
def test_an_origin_is_a_whole_one_or_all(origin: str, taken: bool) -> None:
    long = "x" * 32
    settings = {
        "postgres": {"url": "postgresql://u@h/x"},
        "trust": {"internal_secret": long},
        "redis": {"cache_url": "redis://h/1"},
        "gateway": {"key_pepper": long, "admin_key": long, "cors_origins": [origin]},
    }
    if taken:
        assert GatewaySettings.model_validate(settings).gateway.cors_origins == (origin,)
    else:
        with pytest.raises(ValidationError):
            GatewaySettings.model_validate(settings)

"""TLS to Valkey, for every client that speaks to it."""

import asyncio
from typing import Any, cast

import pytest
import redis
from kombu.exceptions import OperationalError
from pydantic import SecretStr, ValidationError
from redbeat import schedulers
from redis.asyncio import Redis
from tests.integration.tls.conftest import Pems, tls_before

from memplane_core.clients.jobs import celery_app, close_app, redis_client
from memplane_core.clients.valkey import valkey_client
from memplane_core.settings import RedisSettings
from memplane_core.testing.valkey import ValkeyServer
from memplane_maintenance.celery_app import create_app

pytestmark = pytest.mark.anyio


def settings_of(url: str, **files: str) -> RedisSettings:
    return RedisSettings.model_validate({"broker_url": url, "cache_url": url, "timeout_s": 5, **files})


async def outcomes(settings: RedisSettings) -> dict[str, bool]:
    """Which of the clients that the services use get an answer."""

    def blocking() -> bool:
        with redis_client(settings) as client:
            return bool(client.ping())  # pyright: ignore[reportUnknownMemberType]

    def celery() -> bool:
        app = celery_app("test", settings, answer_timeout_s=5)
        try:
            with cast("Any", app).connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=5)
                return bool(connection.connected)
        finally:
            close_app(app)

    def beat() -> bool:
        app = create_app(settings)
        try:
            return bool(schedulers.get_redis(app).ping())  # pyright: ignore[reportUnknownMemberType]
        finally:
            close_app(app)

    async def awaited() -> bool:
        url = settings.cache_url
        client: Redis = valkey_client(url.get_secret_value(), timeout_s=5, tls=settings.tls_options(url))
        async with client:
            return bool(await cast("Any", client.ping()))

    found: dict[str, bool] = {}
    for name, ask in (("blocking", blocking), ("celery", celery), ("beat", beat), ("awaited", awaited)):
        try:
            found[name] = await (ask() if name == "awaited" else asyncio.to_thread(ask))  # type: ignore[arg-type]
        except (redis.RedisError, OperationalError, OSError):
            found[name] = False
    return found


async def test_every_client_checks_who_it_speaks_to(valkey: ValkeyServer, pems: Pems) -> None:
    async with tls_before(valkey.port, pems, postgres=False) as port:
        url = valkey.url.replace("redis://", "rediss://").replace(f":{valkey.port}", f":{port}")
        trusted = await outcomes(settings_of(url, ca_pem_path=pems.certificate))
        assert trusted == dict.fromkeys(trusted, True)
        unknown = await outcomes(settings_of(url))
        assert unknown == dict.fromkeys(trusted, False)
        elsewhere = url.replace("127.0.0.1", "127.0.0.2")
        misnamed = await outcomes(settings_of(elsewhere, ca_pem_path=pems.certificate))
        assert misnamed == dict.fromkeys(trusted, False)


async def test_every_client_shows_its_certificate(valkey: ValkeyServer, pems: Pems) -> None:
    async with tls_before(valkey.port, pems, postgres=False, mutual=True) as port:
        url = valkey.url.replace("redis://", "rediss://").replace(f":{valkey.port}", f":{port}")
        shown = {"client_pem_path": pems.certificate, "client_key_path": pems.key}
        known = await outcomes(settings_of(url, ca_pem_path=pems.certificate, **shown))
        assert known == dict.fromkeys(known, True)
        nobody = await outcomes(settings_of(url, ca_pem_path=pems.certificate))
        assert nobody == dict.fromkeys(known, False)


def test_without_tls_nothing_is_said_of_it() -> None:
    assert settings_of("redis://somewhere").tls_options(SecretStr("redis://somewhere")) == {}


def test_certificates_that_nothing_uses_stop_the_service(pems: Pems) -> None:
    with pytest.raises(ValidationError, match="rediss"):
        settings_of("redis://somewhere", ca_pem_path=pems.certificate)

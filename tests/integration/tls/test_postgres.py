"""TLS to Postgres: what each mode checks, and that migrations check the same."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError
from tests.integration.tls.conftest import Pems, tls_before

from memplane_core.domain.errors import Unavailable
from memplane_core.settings import PostgresSettings
from memplane_core.storage.migrate import upgrade
from memplane_core.storage.session import Database
from memplane_core.storage.tls import ssl_of
from memplane_core.testing.postgres import PostgresServer

pytestmark = pytest.mark.anyio


def at(url: str, port: int, *, host: str = "127.0.0.1") -> str:
    """The same connection, somewhere else."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{host}:{port}").geturl()


async def reaches(url: str, **settings: Any) -> bool:
    """Whether a service with these settings gets an answer."""
    async with Database.open(PostgresSettings.model_validate({"url": url, **settings})) as database:
        try:
            await database.ping()
        except Unavailable:
            return False
    return True


@pytest.fixture
async def port(postgres: PostgresServer, pems: Pems) -> AsyncGenerator[int]:
    async with tls_before(postgres.port, pems, postgres=True) as port:
        yield port


class TestModes:
    async def test_verify_full_wants_the_authority_and_the_name(
        self, postgres: PostgresServer, database_name: str, port: int, pems: Pems
    ) -> None:
        url, elsewhere = (at(postgres.app_url(database_name), port, host=host) for host in ("127.0.0.1", "127.0.0.2"))
        assert await reaches(url, ssl_mode="verify-full", ca_pem_path=pems.certificate)
        assert await reaches(url, ca_pem_path=pems.certificate)
        assert not await reaches(url, ssl_mode="verify-full")  # the system's authorities do not know it
        assert not await reaches(elsewhere, ca_pem_path=pems.certificate)
        assert await reaches(elsewhere, ssl_mode="verify-ca", ca_pem_path=pems.certificate)

    async def test_require_encrypts_and_disable_does_not(
        self, postgres: PostgresServer, database_name: str, port: int
    ) -> None:
        url, plain = at(postgres.app_url(database_name), port), postgres.app_url(database_name)
        assert await reaches(url, ssl_mode="require")
        assert not await reaches(url, ssl_mode="disable")
        assert not await reaches(plain, ssl_mode="require")
        assert await reaches(plain)

    async def test_a_server_may_ask_for_a_certificate(
        self, postgres: PostgresServer, database_name: str, pems: Pems
    ) -> None:
        shown = {"client_pem_path": pems.certificate, "client_key_path": pems.key}
        async with tls_before(postgres.port, pems, postgres=True, mutual=True) as port:
            url = at(postgres.app_url(database_name), port)
            assert not await reaches(url, ca_pem_path=pems.certificate)
            assert await reaches(url, ca_pem_path=pems.certificate, **shown)
            assert await reaches(url, ssl_mode="require", **shown)

    async def test_migrations_check_what_services_check(
        self, postgres: PostgresServer, database_name: str, port: int, pems: Pems
    ) -> None:
        url = at(postgres.owner_url(database_name), port)
        checked = ssl_of(PostgresSettings.model_validate({"url": url, "ca_pem_path": pems.certificate}))
        unknown = ssl_of(PostgresSettings.model_validate({"url": url, "ssl_mode": "verify-full"}))
        await asyncio.to_thread(partial(upgrade, url, "memplane_app", ssl=checked))
        await asyncio.to_thread(partial(upgrade, f"{url}?sslmode=require", "memplane_app"))
        with pytest.raises(OSError, match="certificate"):
            await asyncio.to_thread(partial(upgrade, url, "memplane_app", ssl=unknown))


@pytest.mark.parametrize(
    "settings",
    [
        {"ssl_mode": "full"},
        {"ssl_mode": "require", "ca_pem_path": "certificate"},
        {"ssl_mode": "prefer", "client_pem_path": "certificate"},
        {"client_key_path": "key"},
        {"ca_pem_path": "/nowhere.pem"},
    ],
)
def test_settings_that_would_check_nothing_stop_the_service(settings: dict[str, str], pems: Pems) -> None:
    files = {"certificate": pems.certificate, "key": pems.key}
    given = {name: files.get(value, value) for name, value in settings.items()}
    with pytest.raises(ValidationError):
        PostgresSettings.model_validate({"url": "postgresql://somewhere/memplane", **given})

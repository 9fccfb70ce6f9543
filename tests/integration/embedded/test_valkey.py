"""The embedded Valkey never evicts, wants its password, and keeps its data over a kill."""

import pytest
from redis import AuthenticationError, Redis

from memplane_core.testing.valkey import ValkeyServer


def test_it_never_evicts_and_refuses_without_its_password() -> None:
    with ValkeyServer() as server:
        with Redis.from_url(server.url) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with Redis(port=server.port) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()


def test_killed_with_9_it_comes_back_on_its_port_with_what_was_a_second_old() -> None:
    with ValkeyServer(durable=True) as server:
        port = server.port
        with Redis.from_url(server.url) as client:
            client.set("a", "1")
            client.waitaof(1, 0, 5000)
        server.kill()
        server.start()
        assert server.port == port
        with Redis.from_url(server.url) as client:
            assert client.get("a") == b"1"

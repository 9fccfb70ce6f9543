"""Whose address a request is said to come from."""

import ipaddress

import pytest

from memplane_gateway.sources import client_address

PROXIES = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "source"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.7"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["1.2.3.4, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["1.2.3.4", "198.51.100.7, 10.2.2.2"], "198.51.100.7"),
        ("10.0.0.1", ["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        ("10.0.0.1", ["198.51.100.7, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7:4711"], "198.51.100.7"),
        ("fd00::1", ["[2001:db8::7]:4711"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        (None, ["198.51.100.7"], None),
        ("a socket", [], None),
    ],
)
def test_only_what_a_known_proxy_says_is_believed(peer: str | None, forwarded: list[str], source: str | None) -> None:
    assert client_address(peer, forwarded, proxies=PROXIES) == source


def test_without_proxies_nothing_is_believed() -> None:
    assert client_address("10.0.0.1", ["198.51.100.7"], proxies=[]) == "10.0.0.1"

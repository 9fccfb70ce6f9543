"""What other users of the same machine can see and reach of a running platform."""

import os
import re
import socket
import stat
from pathlib import Path

import httpx2
import msgspec
import psutil
from tests.e2e.conftest import PARTS, Platform


def processes(platform: Platform) -> list[psutil.Process]:
    """All of a platform's."""
    return [platform.supervisor, *platform.supervisor.children(recursive=True)]


def secrets(platform: Platform) -> set[str]:
    """Everything that the home keeps to itself."""
    made = msgspec.json.decode((platform.home / "secrets.json").read_bytes(), type=dict[str, str])
    return {*made.values(), platform.credentials.api_key, platform.credentials.admin_key}


def test_no_command_line_shows_a_secret(platform: Platform) -> None:
    lines = [" ".join(process.cmdline()) for process in processes(platform)]
    assert len(lines) > len(PARTS)
    assert not [line for line in lines for secret in secrets(platform) if secret in line]


def test_no_file_that_others_can_read_holds_a_secret(platform: Platform) -> None:
    assert stat.S_IMODE(platform.home.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    seen = 0
    for folder, _, names in os.walk(platform.home):
        inside = Path(folder)
        if inside != platform.home and not inside.stat().st_mode & 0o005:
            continue  # others cannot get in
        for name in names:
            file = inside / name
            if file.is_symlink() or not file.is_file() or not file.stat().st_mode & 0o044:
                continue
            seen += 1
            held = file.read_bytes()
            assert not [secret for secret in secrets(platform) if secret.encode() in held], file
    assert seen < 50  # none of the stores' files is among them


def test_every_port_is_on_loopback_alone(platform: Platform) -> None:
    listening = [its for process in processes(platform) for its in process.net_connections("inet")]
    addresses = {its.laddr.ip.removeprefix("::ffff:") for its in listening if its.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}


def test_metrics_are_on_ports_of_their_own_and_health_says_nothing_of_the_inside(platform: Platform) -> None:
    with httpx2.Client(base_url=platform.credentials.url, trust_env=False, timeout=30) as client:
        assert client.get("/metrics").status_code == 404
        assert client.get("/healthz").json() == {"status": "ok", "parts": {}}
        assert client.get("/readyz").json() == {
            "status": "ok",
            "parts": dict.fromkeys(("postgres", "retrieval", "cache"), "ok"),
        }
        client.request("BREW", "/healthz")
    ports = msgspec.json.decode((platform.home / "ports.json").read_bytes(), type=dict[str, int])
    with httpx2.Client(trust_env=False, timeout=30) as client:
        said = client.get(f"http://127.0.0.1:{ports['gateway_metrics']}/metrics").text
    assert 'memplane_http_requests_total{method="other",' in said
    assert "BREW" not in said
    assert not [secret for secret in secrets(platform) if secret in said]
    labels = {name for name in re.findall(r'[{,](\w+)="', said) if name not in ("le", "quantile")}
    assert not labels & {"tenant", "key", "user", "path", "query"}


def test_stores_refuse_whoever_has_no_password(platform: Platform) -> None:
    ports = msgspec.json.decode((platform.home / "ports.json").read_bytes(), type=dict[str, int])
    with socket.create_connection(("127.0.0.1", ports["valkey"]), timeout=5) as wire:
        wire.sendall(b"KEYS *\r\n")
        assert wire.recv(100).startswith(b"-NOAUTH")
    for name in ("embedding", "retrieval"):
        answer = httpx2.get(f"http://127.0.0.1:{ports[name]}/v1/models", trust_env=False, timeout=30)
        assert answer.status_code in (401, 404), name

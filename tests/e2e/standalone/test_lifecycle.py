"""`memplane up`: starts soon, survives kills, and leaves nothing behind."""

import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from tests.e2e.conftest import PARTS, Platform, eventually

READY_S = 30.0
"""Of a first start, on two cores."""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that these tests may break."""
    started = Platform(tmp_path_factory.mktemp("lifecycle") / ".memplane")
    try:
        started.start()
        yield started
    finally:
        started.stop()


def remember(platform: Platform) -> str:
    """Write a memory that is like no other, and return its content."""
    content = f"the code word of the day is {uuid.uuid4().hex}"
    with platform.client() as client:
        answer = client.post("/v1/memories", json={"content": content, "user_id": "lifecycle"})
    assert answer.status_code in (201, 202), answer.text
    return content


def recalls(platform: Platform, content: str) -> bool:
    """Whether a search for the memory finds it."""
    body = {"query": content, "filters": {"user_id": "lifecycle"}, "touch": False}
    with platform.client() as client:
        answer = client.post("/v1/memories/search", json=body)
    return answer.status_code == 200 and content in [found["content"] for found in answer.json()["results"]]


class TestStart:
    def test_a_first_start_is_ready_in_thirty_seconds_with_a_line_a_part(self, mine: Platform) -> None:
        assert mine.start_seconds <= READY_S
        lines = mine.output.read_text().splitlines()
        ready = {line.split()[1] for line in lines if line.startswith("ready ")}
        assert ready == {*PARTS, "migrations"}

    def test_the_ready_file_and_the_credentials_are_the_same_and_private(self, mine: Platform) -> None:
        for name in ("credentials.json", "secrets.json"):
            assert stat.S_IMODE((mine.home / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(mine.ready_file.stat().st_mode) == 0o600
        assert mine.ready_file.read_bytes() == (mine.home / "credentials.json").read_bytes()
        with mine.client() as client:
            admin = {"Authorization": f"Bearer {mine.credentials.admin_key}"}
            tenants = client.get("/admin/v1/tenants", headers=admin).json()["results"]
        assert [(tenant["id"], tenant["name"]) for tenant in tenants] == [(mine.credentials.tenant, "demo")]

    def test_no_part_listens_beyond_this_machine_and_no_secret_is_in_a_command_line(self, mine: Platform) -> None:
        secrets = (mine.home / "secrets.json").read_text().split('"')[3::4]
        assert len(secrets) == 7
        for process in (mine.supervisor, *mine.supervisor.children(recursive=True)):
            listening = [one.laddr for one in process.net_connections("inet") if one.status == "LISTEN"]
            assert {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}
            assert not any(secret in " ".join(process.cmdline()) for secret in secrets)

    def test_a_second_start_on_the_same_home_is_refused_with_a_sentence(self, mine: Platform) -> None:
        before = mine.credentials
        command = [sys.executable, "-m", "memplane_standalone", "up", "--home", str(mine.home), "--port", "0"]
        second = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr.startswith(f"memplane: Memplane is already running on {mine.home}: stop it first")
        assert second.stderr.count("\n") == 1
        assert mine.credentials == before
        assert mine.healthy()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_killed_with_9_comes_back_and_the_platform_serves(mine: Platform, name: str) -> None:
    before = remember(mine)
    said = mine.output.read_text().count(f"ready  {name} ")
    killed = mine.part(name)
    port = {one.laddr.port for one in killed.net_connections("inet") if one.status == "LISTEN"}
    killed.kill()
    eventually(lambda: mine.output.read_text().count(f"ready  {name} ") > said, within_s=60)
    assert mine.part(name).pid != killed.pid
    eventually(mine.healthy, within_s=30)
    again = {one.laddr.port for one in mine.part(name).net_connections("inet") if one.status == "LISTEN"}
    assert again == port
    after = remember(mine)
    for content in (before, after):
        eventually(lambda content=content: recalls(mine, content), within_s=30)


class TestEnd:
    def test_killed_with_9_it_leaves_no_process_and_the_next_start_has_the_data(self, mine: Platform) -> None:
        content, before = remember(mine), mine.credentials
        assert mine.end(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: mine.processes() == [], within_s=20)
        mine.start()
        assert mine.credentials.api_key == before.api_key
        assert mine.credentials.tenant == before.tenant
        eventually(lambda: recalls(mine, content), within_s=30)

    def test_told_to_end_it_stops_everything_and_exits_with_0_and_keeps_the_data(self, mine: Platform) -> None:
        content = remember(mine)
        assert mine.end(signal.SIGTERM) == 0
        assert mine.processes() == []
        mine.start()
        eventually(lambda: recalls(mine, content), within_s=30)

    def test_ctrl_c_ends_it_alike(self, mine: Platform) -> None:
        assert mine.end(signal.SIGINT) == 0
        assert mine.processes() == []

    def test_told_to_end_while_it_starts_it_does(self, mine: Platform) -> None:
        starting = mine.spawn()
        eventually(lambda: len(mine.processes()) > 2, within_s=20)
        starting.send_signal(signal.SIGTERM)
        assert starting.wait(30) == 0
        assert mine.processes() == []

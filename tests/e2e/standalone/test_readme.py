"""The README's own lines work as they stand, and so do the commands that it lists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import Platform

README = Path(__file__).parents[3] / "README.md"


def memplane(platform: Platform, *arguments: str) -> str:
    """Run a command on the shared platform's home, and return what it prints."""
    command = [sys.executable, "-m", "memplane_standalone", *arguments, "--home", str(platform.home)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=platform.home.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readmes_curl_lines_write_a_memory_and_recall_it_with_the_next_request(platform: Platform) -> None:
    (block,) = [block for block in re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL) if "curl" in block]
    # The platform's home is called .memplane, as the one that `make run` makes in the folder it is run in.
    lines = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        check=True,
        capture_output=True,
        text=True,
        cwd=platform.home.parent,
        timeout=60,
    ).stdout.splitlines()
    written, found = (json.loads(line) for line in lines if line)
    assert written["content"] == "Anna cannot eat peanuts; even traces make her ill."
    assert [memory["id"] for memory in found["results"]] == [written["id"]]


def test_ci_runs_what_the_readme_calls_the_test_command() -> None:
    (command,) = re.findall(r"## Tests\n\n```sh\n(.*?)\n```", README.read_text(), re.DOTALL)
    assert (README.parent / ".ci" / "run").read_text().splitlines()[-1] == f"exec {command}"


def test_a_tenant_and_a_key_made_on_the_command_line_work_until_the_key_is_revoked(platform: Platform) -> None:
    (tenant,) = json.loads(memplane(platform, "tenants", "create", "acme", "--json"))
    assert "acme" in memplane(platform, "tenants", "list")
    (key,) = json.loads(
        memplane(platform, "keys", "create", "acme", "--name", "app", "--scope", "memories:read", "--json")
    )
    headers = {"Authorization": f"Bearer {key['key']}"}
    with platform.client() as client:
        assert client.get("/v1/memories", headers=headers).json()["results"] == []
        assert client.post("/v1/memories", headers=headers, json={"content": "x"}).status_code == 403
    listed = json.loads(memplane(platform, "keys", "list", tenant["id"], "--json"))
    assert [(one["id"], one["scopes"], "key" in one) for one in listed] == [(key["id"], ["memories:read"], False)]
    memplane(platform, "keys", "revoke", "acme", key["id"])
    with platform.client() as client:
        assert client.get("/v1/memories", headers=headers).status_code == 401


def test_the_demo_finds_evidence_in_the_bundled_conversation_and_can_be_repeated(platform: Platform) -> None:
    for _ in range(2):
        last = memplane(platform, "demo").splitlines()[-1]
        match = re.fullmatch(r"evidence in the top 5: (\d) of 5 questions", last)
        assert match is not None
        assert int(match[1]) >= 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenants", "list", "--url", "http://127.0.0.1:9", "--admin-key", "k"), "no answer from http://127.0.0.1:9"),
        (("tenants", "list", "--home", "nowhere"), "there are no credentials in nowhere: start Memplane with"),
        (("up", "--home", "h", "--port", "PORT"), "is taken by another program: choose another with --port"),
        (("up", "--home", "h", "--port", "0", "--database-url", "postgresql://x:y@127.0.0.1:9/d"), "cannot be reached"),
        (("demo", "--home", "h", "--locomo", "missing.json"), "missing.json is not LoCoMo's file"),
    ],
)
def test_a_command_that_cannot_work_says_why_in_one_line(
    platform: Platform, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    port = platform.credentials.url.rpartition(":")[2]
    command = [port if argument == "PORT" else argument for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "memplane_standalone", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("memplane: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1

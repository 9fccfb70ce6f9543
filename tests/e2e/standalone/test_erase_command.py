"""`memplane erase` against a running platform."""

import json
import subprocess
import sys

from tests.e2e.conftest import Platform


def memplane(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [sys.executable, "-m", "memplane_standalone", *words], capture_output=True, text=True, check=False, timeout=90
    )


def test_a_person_is_erased_from_the_command_line_and_a_tenant_not_by_accident(platform: Platform) -> None:
    home = ("--home", str(platform.home))
    with platform.client() as client:
        for user in ("to be erased", "to stay"):
            client.post("/v1/memories", json={"content": f"of {user}", "user_id": user}).raise_for_status()
        done = memplane("erase", "--user", "to be erased", "--json", *home)
        assert done.returncode == 0, done.stderr
        [view] = json.loads(done.stdout)
        assert (view["state"], view["receipt"]["erased"]["memories"]) == ("done", 1)
        users = {one["id"] for one in client.get("/v1/entities", params={"type": "user"}).json()["results"]}
        assert "to stay" in users
        assert "to be erased" not in users
    nobody = memplane("erase", *home)
    assert (nobody.returncode, "--user" in nobody.stderr) == (1, True)
    unsure = memplane("tenants", "delete", "demo", *home)
    assert (unsure.returncode, "--sure" in unsure.stderr) == (1, True)

"""`memplane jobs` against a running platform."""

import json
import subprocess
import sys
from typing import Any

from tests.e2e.conftest import Platform


def test_jobs_are_started_listed_shown_and_told_why_not(platform: Platform) -> None:
    def memplane(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "memplane_standalone", "jobs", *words, "--home", str(platform.home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def read(*words: str) -> list[dict[str, Any]]:
        return json.loads(memplane(*words, "--json"))

    with platform.client() as client:
        body = {"content": "of no use to anybody", "priority": 1, "user_id": "jobs"}
        memory = client.post("/v1/memories", json=body).raise_for_status().json()["id"]
        rules = ("--set", "max_priority=1", "--set", "age_by=accessed", "--tenant", "demo")
        [dry] = read("start", "prune", "--dry-run", "--as-of", "2099-01-01T00:00:00Z", *rules)
        assert (dry["state"], dry["dry_run"], dry["params"]["rules"]["max_priority"]) == ("done", True, 1)
        assert memory in dry["sample"]
        assert client.get(f"/v1/memories/{memory}").json()["state"] == "active"
        [real] = read("start", "prune", "--wait", *rules)
        assert (real["state"], real["result"]["forgotten"], real["started_by"]) == ("done", 0, "admin")
    assert [job["id"] for job in read("list", "demo", "--kind", "prune", "--limit", "2")] == [real["id"], dry["id"]]
    assert memory in memplane("show", "demo", dry["id"])
    assert read("watch", "demo", real["id"]) == [real]
    assert "done" in memplane("cancel", "demo", real["id"], code=1)
    assert "max_idle_days" in memplane("start", "prune", "--tenant", "demo", "--set", "max_idle_days=0", code=1)
    assert "invent" in memplane("start", "invent", "--tenant", "demo", code=1)

"""`make audit` passes only if somebody who knows has looked."""

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
KNOWS = "jinja2 2.11.2  PYSEC-2021-66 2.11.3"


@pytest.mark.parametrize(
    ("of_the_known_fault", "of_the_locks", "passes"),
    [
        (f"echo '{KNOWS}'; exit 1", "exit 0", True),
        (f"echo '{KNOWS}'; exit 1", "echo 'x 1.0 CVE-2026-1'; exit 1", False),
        ("echo 'jinja2 Dependency not found on PyPI'; exit 0", "exit 0", False),
        ("echo 'Failed to resolve the service' >&2; exit 1", "exit 0", False),
    ],
)
def test_an_audit_that_could_not_be_made_does_not_pass(
    tmp_path: Path, of_the_known_fault: str, of_the_locks: str, passes: bool
) -> None:
    asked = tmp_path / "asked"
    tool = tmp_path / "pip-audit"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\ncase "$*" in *known-fault*) {of_the_known_fault};; esac\n{of_the_locks}\n'
    )
    tool.chmod(0o755)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / ".package").touch()
    package = f"{tmp_path}/venv/.package"
    command = ["make", "-o", package, "audit", f"VENV={tmp_path}/venv", f"AUDIT={tool}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
    last = asked.read_text().splitlines()[-1]
    if "PYSEC" in of_the_known_fault:
        assert all(lock in last for lock in ("requirements.lock", "requirements-milvus-server.lock", "models/"))
        assert "--strict" in last
    else:
        assert "NOT AUDITED" in done.stdout

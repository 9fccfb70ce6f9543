"""A child ends with its parent, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

PARENT = """
import os, pathlib, sys, time
from memplane_core.embedded.processes import Child, Launch
from memplane_core.embedded.users import postgres_user
user = postgres_user() if sys.argv[2] == "as-user" else None
launch = Launch(
    argv=["/bin/sleep", "600"], env={}, log=pathlib.Path(sys.argv[1]), user=user, keep_dac=user is not None
)
child = Child(launch)
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def runs(pid: int, program: str) -> bool:
    return psutil.Process(pid).cmdline()[:1] == [program]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
@pytest.mark.parametrize("mode", ["as-ourselves", "as-user"])
def test_a_child_dies_with_a_parent_that_is_killed_with_9(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log"), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        eventually(lambda: runs(child, "/bin/sleep"))
        if mode == "as-user" and os.geteuid() == 0:
            assert psutil.Process(child).uids().real != 0
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: gone(child))

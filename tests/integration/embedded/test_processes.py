"""A child ends with its parent, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from memplane_core.embedded.processes import Child, Launch
from memplane_core.embedded.users import closed_to, postgres_user

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


def eventually(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


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


@pytest.mark.skipif(sys.platform != "linux", reason="only there it is waited for")
def test_of_one_that_is_killed_none_of_its_group_is_left(tmp_path: Path) -> None:
    many = "for n in $(seq 50); do sleep 600 & done; wait"
    child = Child(Launch(argv=["/bin/sh", "-c", many], env={"PATH": os.defpath}, log=tmp_path / "log"))
    child.start()
    eventually(lambda: len(psutil.Process(child.pid).children()) == 50, within_s=60)
    group = [child.pid, *(one.pid for one in psutil.Process(child.pid).children())]
    child.kill()
    assert [pid for pid in group if not gone(pid)] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_another_user_may_run_programs_in_a_folder_closed_to_it_only_with_keep_dac(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    user = postgres_user()
    assert user is not None
    assert closed_to(user, [program])
    # `test -x` asks by access(2), which for ordinary users does not count capabilities.
    launch = Launch(
        argv=["/bin/sh", "-c", f"test -x {program} && {program}"],
        env={},
        log=tmp_path / "log",
        user=user,
        keep_dac=True,
    )
    Child(launch).run(timeout_s=20)
    with pytest.raises(RuntimeError, match="failed with code 1"):
        Child(replace(launch, keep_dac=False)).run(timeout_s=20)

"""What an earlier run left behind is found by its mark and ended; nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

from memplane_standalone.leftovers import MARK, clear_leftovers

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
)


def sleeper(mark: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    return process


def test_only_processes_of_this_home_are_ended_even_if_they_ignore_it(tmp_path: Path) -> None:
    with sleeper(str(tmp_path)) as ours, sleeper(str(tmp_path) + "-other") as other:
        assert clear_leftovers(tmp_path, grace_s=0.2) == 1
        assert ours.poll() is not None
        assert other.poll() is None
        assert clear_leftovers(tmp_path) == 0
        other.kill()

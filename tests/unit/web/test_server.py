"""A server that is told to end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from memplane_core.testing.ports import reserved_port

PROGRAM = """
from litestar import Litestar
from memplane_core.settings import Settings
from memplane_core.web.server import serve

def app() -> Litestar:
    return Litestar()

if __name__ == "__main__":
    serve("program:app", Settings.model_validate({{"server": {{"port": {port}}}}}))
"""


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def test_told_to_end_many_times_at_once_it_ends(tmp_path: Path) -> None:
    port = reserved_port()
    (tmp_path / "program.py").write_text(PROGRAM.format(port=port))
    process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path)
    try:
        deadline = time.monotonic() + 20
        while not answers(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(500):  # as a parent of many threads does that is killed
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()

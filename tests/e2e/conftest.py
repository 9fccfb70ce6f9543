"""The whole platform, started as a person starts it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import msgspec
import psutil
import pytest

from memplane_core.embedded.probes import http_ok
from memplane_standalone.home import Credentials
from memplane_standalone.leftovers import MARK

START_S = 90.0
"""After which a start is given up; how long it may take is asserted where that is the point."""

# How each part's process is told from the others: by a piece of its command line.
PARTS = {
    "postgres": "/bin/postgres ",
    "valkey": "/valkey-server ",
    "milvus": "-m milvus_lite ",
    "embedding": "-m memplane_embedding",
    "retrieval": "-m memplane_retrieval",
    "worker": "-m memplane_maintenance worker",
    "beat": "-m memplane_maintenance beat",
    "gateway": "-m memplane_gateway",
}


def eventually(condition: Callable[[], bool], *, within_s: float) -> None:
    """Return once `condition()` is true; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about in {within_s:g} s"
        time.sleep(0.05)


class Platform:
    """`memplane up` on a home of its own, at a free port."""

    def __init__(self, home: Path, *, options: tuple[str, ...] = ()) -> None:
        self.home = home
        self.ready_file = home.with_name("ready.json")
        self.output = home.with_name("up.log")
        self.start_seconds = 0.0
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        began = time.monotonic()
        self._process = self.spawn()
        while not self.ready_file.exists():
            assert self._process.poll() is None, self.output.read_text()
            assert time.monotonic() - began < START_S, self.output.read_text()
            time.sleep(0.05)
        self.start_seconds = time.monotonic() - began

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start one without waiting."""
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "memplane_standalone", "up", "--home", str(self.home), "--port", "0"]
        command += ["--ready-file", str(self.ready_file), *self._options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
        environment |= {name: os.environ[name] for name in ("MEMPLANE_MODELS_DIR",) if name in os.environ}
        with self.output.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def credentials(self) -> Credentials:
        """What the ready file says."""
        return msgspec.json.decode(self.ready_file.read_bytes(), type=Credentials)

    @property
    def supervisor(self) -> psutil.Process:
        """The process of `memplane up` itself."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def part(self, name: str) -> psutil.Process:
        """A part's first process. Raises LookupError while there is none."""
        for child in self.supervisor.children():
            try:
                if PARTS[name] in " ".join(child.cmdline()):
                    return child
            except psutil.NoSuchProcess:
                continue
        raise LookupError(name)

    def runs(self, name: str) -> bool:
        """Whether a part has a process."""
        try:
            return self.part(name).is_running()
        except LookupError:
            return False

    def healthy(self) -> bool:
        """Whether the gateway says that it is ready."""
        return http_ok(f"{self.credentials.url}/readyz")

    def end(self, with_signal: signal.Signals = signal.SIGTERM, *, within_s: float = 60.0) -> int:
        """Send a signal to `memplane up` alone, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(with_signal)
        return self._process.wait(within_s)

    def stop(self) -> None:
        """Whatever state it is in, end it."""
        if self._process is not None and self._process.poll() is None:
            self.end()

    def processes(self) -> list[str]:
        """Command lines of all that belongs to this home, by its mark or by where it works."""
        found: list[str] = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.home) or self.home in Path(process.cwd()).parents:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
            except (psutil.Error, OSError):
                continue
        return found

    def client(self) -> httpx2.Client:
        """A client with the demo tenant's key."""
        given = self.credentials
        headers = {"Authorization": f"Bearer {given.api_key}"}
        return httpx2.Client(base_url=given.url, headers=headers, timeout=30.0, trust_env=False)


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One that all end-to-end tests share, and that none may break."""
    started = Platform(tmp_path_factory.mktemp("platform") / ".memplane")
    try:
        started.start()
        yield started
    finally:
        started.stop()

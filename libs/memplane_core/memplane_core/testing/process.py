"""A service as a real process, for tests that kill one."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from memplane_core.embedded.probes import http_ok
from memplane_core.embedded.processes import Child, Launch
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.started import Started


class ServiceProcess(Started):
    """`python -m module arguments...` on free ports, ready when `ready_path` answers 200.

    Args:
        module: What to run, say `memplane_retrieval`.
        arguments: Behind it.
        env: Settings; `MEMPLANE_SERVER__PORT` and `MEMPLANE_SERVER__METRICS_PORT` are added.
        ready_path: Route that answers 200 when it can work.
        ready_s: How long it may take to get there.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str],
        ready_path: str = "/readyz",
        ready_s: float = 60.0,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{module}-"))
        self.port = reserved_port()
        self.metrics_port = reserved_port()
        self._ready_path = ready_path
        self._ready_s = ready_s
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
        argv: Sequence[str] = [sys.executable, "-m", module, *arguments]
        self._launch = Launch(
            argv=argv,
            env={
                **inherited,
                **env,
                "MEMPLANE_SERVER__PORT": str(self.port),
                "MEMPLANE_SERVER__METRICS_PORT": str(self.metrics_port),
                "PYTHONUNBUFFERED": "1",
            },
            log=self._folder / "log",
        )
        self._child = Child(self._launch)

    def dispose(self) -> None:
        """End it and remove its folder."""
        self._child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Its base URL, the same after a restart."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of its first process, which leads its group."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether its first process lives."""
        return self._child.running

    def log(self) -> str:
        """All it has said."""
        return self._launch.log.read_text(errors="replace") if self._launch.log.exists() else ""

    def start(self) -> None:
        """Start it, again if it was stopped or killed, and wait until it is ready."""
        self._child.start()
        self._child.wait_ready(lambda: http_ok(self.url + self._ready_path), timeout_s=self._ready_s)

    def stop(self) -> None:
        """End it with TERM and wait until all of its group is gone."""
        self._child.stop()

    def kill(self) -> None:
        """Kill all of its group with SIGKILL."""
        self._child.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its group, say SIGSTOP or SIGCONT."""
        os.killpg(self._child.pid, number)

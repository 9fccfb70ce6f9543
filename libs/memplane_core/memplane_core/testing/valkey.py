"""A real Valkey for tests, from the wheel that `memplane up` runs too."""

import os
import secrets
import shutil
import signal
import tempfile
from pathlib import Path

from memplane_core.embedded.processes import Child
from memplane_core.embedded.valkey import ValkeyInstance
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.started import Started


class ValkeyServer(Started):
    """A server with a password, in memory only unless `durable`. Ends with this process."""

    def __init__(self, *, durable: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="memplane-valkey-"))
        self._instance = ValkeyInstance(
            data_dir=self._folder / "data",
            port=reserved_port(),
            password=secrets.token_urlsafe(16),
            log=self._folder / "valkey.log",
            durable=durable,
        )
        self._child: Child | None = None

    def dispose(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def port(self) -> int:
        """Where it listens on loopback, the same after a restart."""
        return self._instance.port

    @property
    def url(self) -> str:
        """Its database 0, with the password."""
        return self._instance.url()

    def url_of(self, database: int) -> str:
        """Another of its sixteen databases."""
        return self._instance.url(database)

    def start(self) -> None:
        """Start it, again if it was stopped or killed: same port, same password."""
        self._instance.prepare()
        self._child = Child(self._instance.launch())
        self._child.start()
        self._child.wait_ready(self._instance.is_ready, timeout_s=20)

    def stop(self) -> None:
        """Shut it down cleanly."""
        if self._child is not None:
            self._child.stop()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, say SIGSTOP or SIGCONT."""
        if self._child is not None:
            os.killpg(self._child.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._child is not None:
            self._child.kill()

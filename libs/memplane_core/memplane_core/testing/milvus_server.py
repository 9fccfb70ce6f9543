"""A real standalone Milvus 2.3.5 from the PyPI wheel `milvus`, installed in an environment of its own.

The wheel wants an older pymilvus and unpacks its binaries into every data folder; so it has its own environment, its
binaries are unpacked there once, and the server is started as our own child.

    python -m memplane_core.testing.milvus_server prepare
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

import msgspec

from memplane_core.embedded.probes import http_ok
from memplane_core.embedded.processes import Child, Launch
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.started import Started

PYTHON_VARIABLE: Final = "MEMPLANE_MILVUS_SERVER_PYTHON"
"""Names the interpreter of an environment that has the wheel, instead of the one that `prepare` makes."""

_ROOT = Path(__file__).resolve().parents[4]
_LOCK = _ROOT / "requirements-milvus-server.lock"
_HOME = _ROOT / ".venvs" / "milvus-server"

_UNPACK = "import sys, milvus; milvus._initialize_data_files(sys.argv[1])"

_CONFIGURE = """
import json, sys, milvus
base, ports = sys.argv[1], json.loads(sys.argv[2])
config = milvus.MilvusServerConfig(data_dir=base, **ports)
config.set("log.level", "warn")
config.set("etcd_log_level", "warn")
config.resolve()
"""

_PORTS = (
    *("etcd_port", "proxy_port", "proxy_internal_port", "root_coord_port", "query_coord_port", "query_node_port"),
    *("index_coord_port", "index_node_port", "data_coord_port", "data_node_port"),
)


class _EtcdConfig(msgspec.Struct, rename="kebab"):
    """The embedded etcd ignores Milvus's own port setting and would take 2379 and 2380 for all servers alike."""

    data_dir: str
    listen_client_urls: str
    advertise_client_urls: str
    listen_peer_urls: str
    initial_advertise_peer_urls: str
    initial_cluster: str
    name: str = "default"
    log_level: str = "warn"


def prepare() -> Path:
    """Make the environment from the lock if it is absent or stale, and unpack the binaries once.

    Returns:
        The environment's interpreter. Takes 20 s the first time, nothing later; safe when several do it at once.
    """
    override = os.environ.get(PYTHON_VARIABLE)
    home = Path(override).absolute().parent.parent if override else _HOME
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f".{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not override:
            _install(home)
        _unpack(home)
    return home / "bin" / "python"


def _install(home: Path) -> None:
    wanted = hashlib.sha256(_LOCK.read_bytes()).hexdigest()
    stamp = home / "lock.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    venv.create(home, clear=True, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--require-hashes", "--no-deps", "-r", str(_LOCK)], check=True)  # noqa: S603
    stamp.write_text(wanted)


def _unpack(home: Path) -> None:
    target = home / "milvus-server"
    if not target.exists():
        partial = home / "milvus-server.part"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run([str(home / "bin" / "python"), "-c", _UNPACK, str(partial)], check=True)  # noqa: S603
        partial.rename(target)


class MilvusServer(Started):
    """One standalone server. As a context manager it runs inside the `with`, and can be stopped and started there.

    Every port it opens is a free one of its own, so that any number can run side by side.

    Args:
        data_dir: Where its etcd, queue, segments, configuration and logs are, made if absent and left behind; about
            200 MB when empty. A temporary folder when left out.
        exact_growing: Search rows that are not in a built index yet one by one, which is exact. A server's own default
            is an interim index that looks into 16 of 128 lists as soon as a segment has about 5,000 rows: measured on
            5,882 LoCoMo turns, recall@200 falls from 1.00 to .80 and recall@10 to .94 until the segment is indexed.
    """

    def __init__(self, data_dir: Path | None = None, *, exact_growing: bool = True) -> None:
        self._exact_growing = exact_growing
        self._temporary = None if data_dir else Path(tempfile.mkdtemp(prefix="memplane-milvus-"))
        self._folder = (data_dir or self._temporary or Path()).absolute()
        self._choose_ports()
        self._child: Child | None = None

    def _choose_ports(self) -> None:
        ports: list[int] = []
        while len(ports) < len(_PORTS) + 2:
            ports.append(reserved_port(besides=ports))
        self._etcd_peer_port, self._health_port, *rest = ports
        self._ports = dict(zip(_PORTS, rest, strict=True))
        self.port = self._ports["proxy_port"]

    @property
    def uri(self) -> str:
        """What `MilvusSettings.uri` takes."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start it, again if it was stopped or killed; returns when it says that it is healthy.

        That takes 2 s on an empty folder and 9 s on one that it was killed in. For up to 40 s after a restart it
        answers that collections are not loaded.

        Raises:
            RuntimeError: It ended or was too slow, with the end of its log.
        """
        if self._child is None:
            python = prepare()
            self._configure(python)
            self._child = Child(self._launch(python.parent.parent / "milvus-server" / "bin"))
        self._child.start()
        health = f"http://127.0.0.1:{self._health_port}/healthz"  # 200 only when all of its parts are
        self._child.wait_ready(lambda: http_ok(health), timeout_s=timeout_s)

    def stop(self) -> None:
        """End it: a polite signal first, SIGKILL 3 s later."""
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, say SIGSTOP or SIGCONT. Raises RuntimeError unless it was started."""
        if self._child is None:
            raise RuntimeError("the server has not been started")
        os.killpg(self._child.pid, number)

    def _launch(self, binaries: Path) -> Launch:
        return Launch(
            argv=[str(binaries / "milvus"), "run", "standalone"],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(binaries),
                "DEPLOY_MODE": "STANDALONE",
                "METRICS_PORT": str(self._health_port),
                "MILVUS_RUN_DIR": str(self._folder / "run"),
                "ETCD_CONFIG_PATH": str(self._folder / "configs" / "etcd.yaml"),
                "COMMON_SESSION_TTL": "10",  # what a killed server's parts are waited for by the next one, in seconds
                "QUERYNODE_SEGCORE_INTERIMINDEX_ENABLEINDEX": "false" if self._exact_growing else "true",
            },
            log=self._folder / "logs" / "output.log",
            cwd=self._folder,
            death_signal=signal.SIGKILL,
            grace_s=3.0,
        )

    def _configure(self, python: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for tries_left in (2, 1, 0):
            ports = msgspec.json.encode(self._ports).decode()
            told = subprocess.run([str(python), "-c", _CONFIGURE, str(self._folder), ports], check=not tries_left)  # noqa: S603
            if told.returncode == 0:
                break
            self._choose_ports()  # it refuses ports that somebody has taken since they were free
        client = f"http://127.0.0.1:{self._ports['etcd_port']}"
        peer = f"http://127.0.0.1:{self._etcd_peer_port}"
        etcd = _EtcdConfig(
            data_dir=str(self._folder / "data" / "etcd.data"),
            listen_client_urls=client,
            advertise_client_urls=client,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
        )
        (self._folder / "configs" / "etcd.yaml").write_bytes(msgspec.json.encode(etcd))  # JSON is YAML

    def dispose(self) -> None:
        """End it and remove its folder."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """`prepare` is the only command. Returns the exit code."""
    if arguments != ["prepare"]:
        sys.stderr.write("usage: python -m memplane_core.testing.milvus_server prepare\n")
        return 2
    prepare()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""One of the embedded stores as a server that others reach: `python -m memplane_standalone.store postgres`.

For trials in a cluster, where each store is a pod of its own. `postgres` makes the roles, the database and its schema
as well, and is ready once they are there. `/healthz` and `/readyz` are on a port of their own.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, Literal, Protocol

from pydantic import SecretStr

from memplane_core.contracts.system import Health
from memplane_core.embedded.milvus import MilvusLiteInstance
from memplane_core.embedded.postgres import PostgresCluster
from memplane_core.embedded.processes import Launch
from memplane_core.embedded.valkey import ValkeyInstance
from memplane_core.observability.logs import configure_logs, get_logger
from memplane_core.settings import Port, Section, ServerSettings, Settings
from memplane_core.storage import bootstrap
from memplane_core.storage.migrate import upgrade
from memplane_maintenance.health import HealthServer, Probe

log = get_logger(__name__)

_USAGE: Final = "usage: python -m memplane_standalone.store postgres|valkey|milvus\n"
_EX_CONFIG: Final = 78


class StoreSettings(Section):
    """Where a store is and who may use it.

    Attributes:
        data_dir: Its folder; made if absent. The folder above must exist.
        password: Of Postgres's superuser, or of Valkey; Milvus Lite has none.
        owner_password: Of the role that migrates; of Postgres alone.
        app_password: Of the role that the services run as; of Postgres alone.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: Port
    password: SecretStr = SecretStr("")
    owner_password: SecretStr = SecretStr("")
    app_password: SecretStr = SecretStr("")


class StoreServerSettings(ServerSettings):
    """Where its health is told."""

    host: str = "0.0.0.0"  # noqa: S104 - whoever probes it is on another machine


class AllStoreSettings(Settings):
    """Everything that a store reads."""

    server: ServerSettings = StoreServerSettings()
    store: StoreSettings


class Server(Protocol):
    """What `memplane_core.embedded` offers of each."""

    def prepare(self) -> None:
        """Called before the start."""
        ...

    def launch(self) -> Launch:
        """How to run it."""
        ...

    def is_ready(self) -> bool:
        """Whether it answers."""
        ...


class Store:
    """A server as a child of this process, until that is told to end or the server ends by itself."""

    def __init__(self, server: Server, *, complete: Callable[[], None]) -> None:
        self._server = server
        self._complete = complete
        self._is_complete = False
        self._told = threading.Event()

    def probe(self) -> Probe:
        """Alive for as long as this process is, for that ends with the server; ready once what it serves is there."""
        return Probe(alive=lambda: True, ready=self._ready)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler."""
        del number, frame
        self._told.set()

    def run(self) -> int:
        """Run it, and return the exit code: 0 where it was told to end and did."""
        self._server.prepare()
        launch = self._server.launch()
        command, env = launch.command(), dict(launch.env)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=launch.cwd, env=env, umask=0o077) as child:
            threading.Thread(target=self._begin, name="begin", daemon=True).start()
            while child.poll() is None and not self._told.wait(0.2):
                pass
            if child.poll() is not None:
                log.error("store_ended", code=child.returncode)
                return 1
            child.send_signal(launch.stop_signal)
            try:
                return abs(child.wait(launch.grace_s))
            except subprocess.TimeoutExpired:
                child.kill()
                return 1

    def _begin(self) -> None:
        while not self._server.is_ready():
            time.sleep(0.1)
        try:
            self._complete()
        except Exception:
            log.exception("store_not_completed")
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._is_complete = True
        log.info("store_ready")

    def _ready(self) -> Health:
        state = "ok" if self._is_complete and self._server.is_ready() else "unavailable"
        return Health(state, {"store": state})


def run_store(kind: Literal["postgres", "valkey", "milvus"], settings: AllStoreSettings) -> int:
    """Serve a store until TERM; returns the exit code."""
    configure_logs(settings.log, service=kind)
    about = settings.store
    nowhere = Path(os.devnull)  # what the server says goes to where this process's own output goes
    match kind:
        case "postgres":
            cluster = PostgresCluster(
                data_dir=about.data_dir,
                port=about.port,
                password=about.password.get_secret_value(),
                log=nowhere,
                host=about.host,
            )
            store = Store(cluster, complete=lambda: _complete_postgres(cluster, about))
        case "valkey":
            password = about.password.get_secret_value()
            valkey = ValkeyInstance(
                data_dir=about.data_dir, port=about.port, password=password, log=nowhere, host=about.host
            )
            store = Store(valkey, complete=_nothing)
        case "milvus":
            lite = MilvusLiteInstance(data_dir=about.data_dir, port=about.port, log=nowhere, host=about.host)
            store = Store(lite, complete=_nothing)
    signal.signal(signal.SIGTERM, store.stop)
    signal.signal(signal.SIGINT, store.stop)
    HealthServer(store.probe()).serve(settings.server.host, settings.server.port, settings.server.metrics_port)
    return store.run()


def _nothing() -> None:
    """There is nothing to be made in it."""


def _complete_postgres(cluster: PostgresCluster, about: StoreSettings) -> None:
    owner, app = about.owner_password.get_secret_value(), about.app_password.get_secret_value()

    async def make() -> None:
        await bootstrap.make_roles(cluster.url(), owner_password=owner, app_password=app)
        await bootstrap.make_database(cluster.url())

    asyncio.run(make())
    upgrade(cluster.url(bootstrap.DATABASE, user=bootstrap.OWNER_ROLE, password=owner), bootstrap.APP_ROLE)


def main(arguments: list[str]) -> int:
    """Run the store that is named; returns the exit code: 2 for other arguments."""
    match arguments:
        case ["postgres" | "valkey" | "milvus" as kind]:
            settings = AllStoreSettings.load()
            missing = _missing(kind, settings.store)
            if missing:
                sys.stderr.write(f"AllStoreSettings: {', '.join(missing)} missing\n")
                return _EX_CONFIG
            return run_store(kind, settings)
        case _:
            sys.stderr.write(_USAGE)
            return 2


def _missing(kind: str, about: StoreSettings) -> list[str]:
    needed = {"postgres": ("password", "owner_password", "app_password"), "valkey": ("password",), "milvus": ()}[kind]
    return [f"MEMPLANE_STORE__{name.upper()}" for name in needed if not getattr(about, name).get_secret_value()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

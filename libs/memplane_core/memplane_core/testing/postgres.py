"""A real Postgres for tests, from the wheel that `memplane up` runs too: two roles, pgvector, no fsync by default."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from memplane_core.embedded.postgres import PostgresCluster
from memplane_core.embedded.processes import Child
from memplane_core.storage import bootstrap
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.started import Started


class PostgresServer(Started):
    """A server with a cluster of its own in a temporary folder. Starts in about a second; ends with this process.

    Args:
        durable: Whether a commit waits for the disk.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="memplane-pg-"))
        self._folder.chmod(0o711)
        self._cluster = PostgresCluster(
            data_dir=self._folder / "data",
            port=reserved_port(),
            password=secrets.token_urlsafe(16),
            log=self._folder / "postgres.log",
            durable=durable,
        )
        self._owner_password = secrets.token_urlsafe(16)
        self._app_password = secrets.token_urlsafe(16)
        self._child: Child | None = None
        self._has_roles = False

    def dispose(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def port(self) -> int:
        """Where it listens on loopback, the same after a restart."""
        return self._cluster.port

    @property
    def log(self) -> Path:
        """What the server has to say."""
        return self._cluster.log

    def start(self) -> None:
        """Start it, again if it was stopped or killed: same port, same data."""
        self._cluster.prepare()
        self._child = Child(self._cluster.launch())
        self._child.start()
        self._child.wait_ready(self._cluster.is_ready, timeout_s=60)
        if not self._has_roles:
            _run(
                bootstrap.make_roles(
                    self.superuser_url(), owner_password=self._owner_password, app_password=self._app_password
                )
            )
            self._has_roles = True

    def stop(self) -> None:
        """Shut it down cleanly."""
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def superuser_url(self, database: str = "postgres") -> str:
        """For what neither role may do."""
        return self._cluster.url(database)

    def owner_url(self, database: str) -> str:
        """For migrations: the role that owns the database."""
        return self._cluster.url(database, user=bootstrap.OWNER_ROLE, password=self._owner_password)

    def app_url(self, database: str) -> str:
        """For services: the role under row-level security."""
        return self._cluster.url(database, user=bootstrap.APP_ROLE, password=self._app_password)

    def create_database(self, name: str | None = None, *, template: str | None = None) -> str:
        """Make a database owned by the owner role, with pgvector, and return its name.

        Args:
            name: A new one; made up where None.
            template: A database to copy, say a migrated one. Nobody may be connected to it.
        """
        chosen = name or f"test_{secrets.token_hex(6)}"
        _run(bootstrap.make_database(self.superuser_url(), chosen, template=template))
        return chosen

    def drop_database(self, name: str) -> None:
        """Drop a database with every connection to it; none of that name is no error."""
        _run(_execute(self.superuser_url(), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


async def _execute(url: str, statement: str) -> None:
    connection = await bootstrap.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _run(work: Coroutine[None, None, None]) -> None:
    """Run `work` to its end, also where this thread has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()

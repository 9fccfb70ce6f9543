"""An embedded store as a server of its own, as trials in a cluster run it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memplane_core.embedded.probes import http_ok
from memplane_core.settings import PostgresSettings
from memplane_core.storage.session import Database
from memplane_core.testing.ports import reserved_port

PASSWORD = "password-of-the-tests-0123"


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/sbin/useradd").exists(), reason="Postgres refuses to be root")
def test_postgres_is_ready_once_the_services_can_use_it_and_ends_cleanly(tmp_path: Path) -> None:
    port, health = reserved_port(), reserved_port()
    folder = tmp_path / "pg"
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    env = {
        **os.environ,
        "MEMPLANE_SERVER__HOST": "127.0.0.1",
        "MEMPLANE_SERVER__PORT": str(health),
        "MEMPLANE_STORE__PORT": str(port),
        "MEMPLANE_STORE__HOST": "0.0.0.0",
        "MEMPLANE_STORE__DATA_DIR": str(folder),
        **{f"MEMPLANE_STORE__{name}": PASSWORD for name in ("PASSWORD", "OWNER_PASSWORD", "APP_PASSWORD")},
    }
    with subprocess.Popen([sys.executable, "-m", "memplane_standalone.store", "postgres"], env=env) as store:
        try:
            deadline = time.monotonic() + 90
            while not http_ok(f"http://127.0.0.1:{health}/readyz"):
                assert store.poll() is None
                assert time.monotonic() < deadline
            url = f"postgresql://memplane_app:{PASSWORD}@127.0.0.1:{port}/memplane"
            assert asyncio.run(_memories(url)) == 0
            store.send_signal(signal.SIGTERM)
            assert store.wait(60) == 0
            assert not (folder / "postmaster.pid").exists()
        finally:
            store.kill()


async def _memories(url: str) -> object:
    async with (
        Database.open(PostgresSettings.model_validate({"url": url})) as database,
        database.system() as connection,
    ):
        return await connection.fetchval("SELECT count(*) FROM memory")


def test_a_store_without_its_secrets_does_not_start_and_names_them(tmp_path: Path) -> None:
    env = {**os.environ, "MEMPLANE_STORE__PORT": "1", "MEMPLANE_STORE__DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "memplane_standalone.store", "valkey"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 78
    assert "MEMPLANE_STORE__PASSWORD" in done.stderr

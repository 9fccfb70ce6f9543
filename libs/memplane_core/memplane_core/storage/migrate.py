"""Brings a database to the newest schema. Run by the owner role, before any service of the new version starts."""

from pathlib import Path
from ssl import SSLContext
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError

_SCRIPTS = Path(__file__).parent / "migrations"

_SENTENCES: Final = {
    "28P01": "Postgres refuses the owner's user or password",
    "28000": "Postgres refuses the owner's user",
    "3D000": "there is no database of that name",
    "42501": "the owner may not do that: it has to own the schema",
    "55P03": "somebody held a lock for too long",
}
"""What the commonest refusals mean, by SQLSTATE."""


def upgrade(owner_url: str, app_role: str, *, revision: str = "head", ssl: SSLContext | str | None = None) -> None:
    """Migrate the database that `owner_url` names and grant the runtime role what it needs.

    Safe to run twice and by two at once: the second waits, and finds nothing to do.

    Args:
        owner_url: `postgresql://` URL of the role that owns the schema. It needs no superuser right if the `vector`
            extension is there already.
        app_role: The runtime role; it must exist, and is refused if it could step around row-level security.
        revision: Where to stop.
        ssl: As `storage.tls.ssl_of` says; None leaves it to the URL.

    Raises:
        RuntimeError: The runtime role does not exist, or may bypass row-level security.
    """
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["owner_url"] = owner_url
    config.attributes["app_role"] = app_role
    config.attributes["ssl"] = ssl
    command.upgrade(config, revision)


class MigrationError(Exception):
    """The schema is as it was; says why."""


def upgrade_patiently(
    owner_url: str, app_role: str, *, lock_timeout_s: float, ssl: SSLContext | str | None = None
) -> None:
    """As `upgrade`, but it waits for no lock longer than `lock_timeout_s`: what comes behind it would wait as well.

    All of it is one transaction: a migration that fails, or is killed, leaves the schema as it was.

    Raises:
        MigrationError: It did not come to its end. Quotes neither the connection string nor values.
    """
    try:
        upgrade(with_lock_timeout(owner_url, lock_timeout_s), app_role, ssl=ssl)
    except RuntimeError as error:
        raise MigrationError(str(error)) from None
    except OSError as error:
        raise MigrationError(f"the database cannot be reached ({type(error).__name__})") from None
    except (DBAPIError, asyncpg.PostgresError) as error:
        state = str(getattr(getattr(error, "orig", None) or error, "sqlstate", None) or "unknown")
        raise MigrationError(_SENTENCES.get(state) or f"Postgres refused with SQLSTATE {state}") from error


def with_lock_timeout(url: str, seconds: float) -> str:
    """The same connection string, with Postgres giving up each wait for a lock after `seconds`."""
    parts = urlsplit(url)
    options = {"lock_timeout": str(max(1, round(seconds * 1000))), **dict(parse_qsl(parts.query))}
    return urlunsplit(parts._replace(query=urlencode(options)))

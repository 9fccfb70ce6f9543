"""Brings a database to the newest schema. Run by the owner role, before any service of the new version starts."""

from pathlib import Path
from ssl import SSLContext

from alembic import command
from alembic.config import Config

_SCRIPTS = Path(__file__).parent / "migrations"


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
